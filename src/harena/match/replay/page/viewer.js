// The player: frames, time, keys and the seats' panels. Frames can be appended while a match runs:
//   harena.append({step, actions, rewards, view, text, clocks})    harena.finish({winner, scores, status, reason, seats})
"use strict";

(() => {
  const data = JSON.parse(document.getElementById("data").textContent);
  const { match, seats } = data;
  const frames = [];
  const totals = []; // for each frame what each seat has been given so far
  const speeds = [0.25, 0.5, 1, 2, 4, 8, 16];
  const still = window.matchMedia("(prefers-reduced-motion: reduce)");
  const by = (id) => document.getElementById(id);
  const { element } = boards;
  const state = { at: 0, playing: false, speed: 1, clock: null, stale: false };
  let board = boards.of(match.game);
  let draw = board.mount(by("stage"), seats);
  let panels = [];

  // ---- frames ----

  const index = () => Math.min(frames.length - 1, Math.floor(state.at));
  const last = () => Math.max(0, frames.length - 1);

  function add(frame) {
    const before = totals.length ? totals[totals.length - 1] : seats.map(() => 0);
    const given = frame.totals || before.map((sum, seat) => sum + ((frame.rewards && frame.rewards[seat]) || 0));
    totals.push(given);
    frame.rewards = given.map((sum, seat) => sum - before[seat]);
    frames.push(frame);
  }

  function append(frame) {
    const following = state.at >= last();
    add(frame);
    by("scrub").max = String(last());
    if (following && !state.playing) state.at = last();
    if (!state.stale) requestAnimationFrame(redraw); // many may come between two pictures
    state.stale = true;
  }

  function redraw() {
    state.stale = false;
    show();
    marks();
  }

  function finish(result) {
    Object.assign(match, { winner: result.winner, scores: result.scores, status: result.status, reason: result.reason });
    (result.seats || []).forEach((seat, at) => Object.assign(seats[at], { status: seat.status, reason: seat.reason }));
    heading();
    show();
  }

  // ---- playback ----

  function seek(position) {
    state.at = Math.max(0, Math.min(last(), position));
    show();
  }

  function play(on) {
    if (on && state.at >= last()) state.at = 0;
    state.playing = on && frames.length > 1;
    state.clock = null;
    by("toggle").classList.toggle("playing", state.playing);
    by("toggle").setAttribute("aria-label", state.playing ? "Pause" : "Play");
    if (state.playing) requestAnimationFrame(tick);
    show();
  }

  function tick(now) {
    if (!state.playing) return;
    const passed = state.clock === null ? 0 : Math.min(250, now - state.clock);
    state.clock = now;
    state.at += (passed / 1000) * board.rate * state.speed;
    if (state.at >= last()) {
      state.at = last();
      play(false);
      return;
    }
    show();
    requestAnimationFrame(tick);
  }

  function step(by_) {
    if (state.playing) play(false);
    seek(index() + by_);
  }

  function setSpeed(speed) {
    state.speed = speed;
    by("speed").value = String(speed);
  }

  function faster(by_) {
    const at = speeds.indexOf(state.speed) + by_;
    setSpeed(speeds[Math.max(0, Math.min(speeds.length - 1, at))]);
  }

  const actions = {
    " ": () => play(!state.playing),
    ArrowLeft: () => step(-1),
    ArrowRight: () => step(1),
    Home: () => step(-Infinity),
    End: () => step(Infinity),
    "+": () => faster(1),
    "=": () => faster(1),
    "-": () => faster(-1),
  };

  function onKey(event) {
    if (event.ctrlKey || event.metaKey || event.altKey || !Object.hasOwn(actions, event.key)) return;
    const target = event.target;
    if (target instanceof HTMLSelectElement) return;
    if (event.key === " " && (target instanceof HTMLButtonElement || target.tagName === "SUMMARY")) return;
    event.preventDefault();
    actions[event.key]();
  }

  // ---- what is shown ----

  function show() {
    if (!frames.length) return;
    const at = index();
    const moving = state.playing && !still.matches;
    const scene = { frame: frames[at], frames, index: at, next: moving ? frames[at + 1] : undefined, t: moving ? state.at - at : 0 };
    try {
      draw(scene);
    } catch (error) {
      if (board === boards.generic) throw error;
      board = boards.generic; // the view is not what this game's board expects: show it as it is
      draw = board.mount(by("stage"), seats);
      draw(scene);
    }
    const scrub = by("scrub");
    scrub.value = String(at);
    const number = frames[at].step === undefined ? at : frames[at].step;
    const steps = match.steps === null || match.steps === undefined ? frames[last()].step : match.steps;
    const words = `step ${number} of ${steps}`;
    scrub.setAttribute("aria-valuetext", words);
    by("where").textContent = words;
    panels.forEach((panel, seat) => panel(at, seat));
  }

  function seatPanel(seat, number) {
    const item = element("li", "seat");
    item.style.setProperty("--colour", boards.seatColour(number));
    const head = element("div", "head");
    const name = element("span", "name");
    name.append(element("span", "mark", letter(number)), seat.name);
    const score = element("span", "score");
    head.append(name, score);
    const badge = element("p", "badge");
    const list = element("dl");
    const rows = {};
    for (const row of ["action", "reward", "last move", "CPU used"]) {
      rows[row] = element("dd");
      list.append(element("dt", "", row), rows[row]);
    }
    item.append(head, badge, list);
    by("seats").append(item);
    return (at) => {
      const frame = frames[at];
      score.textContent = plain(scoreOf(at, number));
      const reward = frame.rewards && frame.rewards[number];
      rows.action.textContent = actionOf(frame, number);
      rows.reward.textContent = reward ? signed(reward) : "–";
      rows.reward.className = reward > 0 ? "plus" : reward < 0 ? "minus" : "";
      const used = cpu(frame, number);
      const moved = frame.actions && frame.actions[number] !== undefined;
      rows["last move"].textContent = at && moved && used !== null ? seconds(used - (cpu(frames[at - 1], number) || 0)) : "–";
      rows["CPU used"].textContent = used === null ? "–" : seconds(used);
      const turn = frame.view && Array.isArray(frame.view.to_move) && frame.view.to_move.includes(number);
      item.classList.toggle("to-move", Boolean(turn));
      badgeOf(badge, seat, number, at);
    };
  }

  function badgeOf(badge, seat, number, at) {
    const over = at === last() && match.status !== null;
    const failed = seat.status && seat.status !== "ok";
    const won = over && match.winner === number;
    badge.hidden = !failed && !won;
    badge.classList.toggle("won", !failed && won);
    badge.textContent = failed ? `${seat.status}${seat.reason ? `: ${seat.reason}` : ""}` : "winner";
  }

  const letter = (seat) => "ABCDEFGHIJKLMNOPQRSTUVWXYZ"[seat] || String(seat + 1);

  function scoreOf(at, seat) {
    if (at === last() && match.status !== null && match.scores) return match.scores[seat];
    const view = frames[at].view;
    const points = board.score && view ? board.score(view) : null;
    return Array.isArray(points) ? points[seat] : totals[at][seat];
  }

  function actionOf(frame, seat) {
    const action = frame.actions && frame.actions[seat];
    if (action === undefined) return "–";
    if (board.name && Number.isInteger(action)) return board.name(action);
    if (board.names && typeof board.names[action] === "string") return board.names[action];
    const text = typeof action === "string" ? action : JSON.stringify(action);
    return text.length > 200 ? `${text.slice(0, 200)}…` : text;
  }

  function cpu(frame, seat) {
    const clock = frame && frame.clocks && frame.clocks[seat];
    if (typeof clock === "number") return clock;
    return clock && typeof clock.cpu_s === "number" ? clock.cpu_s : null;
  }

  const plain = (value) => (typeof value === "number" ? String(Math.round(value * 1000) / 1000).replace("-", "−") : "–");
  const signed = (value) => (value > 0 ? `+${plain(value)}` : plain(value));

  function seconds(value) {
    if (value >= 1) return `${value.toFixed(2)} s`;
    if (value >= 0.001) return `${(value * 1000).toFixed(1)} ms`;
    return `${Math.round(value * 1e6)} µs`;
  }

  // ---- what stays the same ----

  function heading() {
    const title = match.title || match.environment;
    document.title = `${title} · ${seats.map((seat) => seat.name).join(" – ")}`;
    by("title").textContent = title;
    const facts = [match.environment, match.match_id ? `match ${match.match_id}` : "", match.seed === null ? "" : `seed ${match.seed}`];
    by("subtitle").textContent = facts.filter(Boolean).join(" · ");
    by("result").replaceChildren(...resultWords());
  }

  function resultWords() {
    if (match.status === null) return [];
    const why = match.reason ? element("span", "why", ` · ${match.reason}`) : "";
    if (match.status !== "finished") return [`no result: ${match.status}`, why];
    if (match.winner !== null && match.winner !== undefined) return [`${seats[match.winner].name} wins`, why];
    return [seats.length === 1 ? `score ${plain(match.scores[0])}` : "draw", why];
  }

  function footer() {
    const versions = data.versions || {};
    const parts = [versions.harena ? `harena ${versions.harena}` : "harena"];
    if (match.started_at) parts.push(`played ${new Date(match.started_at * 1000).toISOString().slice(0, 19).replace("T", " ")} UTC`);
    if (typeof match.wall_s === "number") parts.push(`in ${seconds(match.wall_s)}`);
    by("foot").textContent = parts.join(" · ");
    if (data.stride > 1) {
      by("note").hidden = false;
      by("note").textContent = `A long match: this page shows one of every ${data.stride} steps. Rewards and times of the steps between are added to the next one shown.`;
    }
  }

  function logs() {
    if (!Array.isArray(data.logs)) return;
    const pane = by("logs");
    pane.hidden = false;
    pane.append(element("h2", "", "Logs"));
    data.logs.forEach((log, seat) => {
      const details = element("details");
      details.append(element("summary", "", seats[seat] ? seats[seat].name : `seat ${seat}`), element("pre", "", log || "(nothing printed)"));
      details.open = Boolean(log) && data.logs.length <= 4;
      pane.append(details);
    });
  }

  // Where on the timeline somebody gained: a tick in the colours of the seats. Where most steps pay, ticks say nothing.
  function marks() {
    const canvas = by("marks");
    const scale = window.devicePixelRatio || 1;
    const [width, height] = [canvas.clientWidth * scale, canvas.clientHeight * scale];
    [canvas.width, canvas.height] = [width, height];
    const gained = frames.map((frame) => seats.map((_, seat) => seat).filter((seat) => frame.rewards[seat] > 0));
    if (gained.filter((winners) => winners.length).length > Math.max(1, frames.length * 0.7)) return;
    const context = canvas.getContext("2d");
    const inset = 8 * scale; // half the thumb: the slider's first and last place
    gained.forEach((winners, at) => {
      const x = inset + (at / Math.max(1, last())) * (width - 2 * inset) - scale;
      winners.forEach((seat, row) => {
        context.fillStyle = boards.colour(`seat${seat % 8}`);
        context.fillRect(x, (row * height) / winners.length, 2 * scale, height / winners.length);
      });
    });
  }

  function listen() {
    document.addEventListener("keydown", onKey);
    by("first").addEventListener("click", actions.Home);
    by("back").addEventListener("click", actions.ArrowLeft);
    by("toggle").addEventListener("click", actions[" "]);
    by("forward").addEventListener("click", actions.ArrowRight);
    by("last").addEventListener("click", actions.End);
    by("speed").addEventListener("change", (event) => setSpeed(Number(event.target.value)));
    by("scrub").addEventListener("input", (event) => {
      if (state.playing) play(false);
      seek(Number(event.target.value));
    });
    window.addEventListener("resize", redraw);
    window.matchMedia("(prefers-color-scheme: dark)").addEventListener("change", redraw);
  }

  // "#step=12" opens the page at that step, "#play" starts it, "#mini" shows the picture alone.
  function begin() {
    const wanted = new Set(location.hash.slice(1).split("&"));
    const step = [...wanted].map((word) => /^step=(\d{1,9})$/.exec(word)).find(Boolean);
    document.documentElement.classList.toggle("mini", wanted.has("mini"));
    if (step) seekStep(Number(step[1]));
    else if (wanted.has("play") && !still.matches) play(true);
  }

  // Long matches leave frames out: the last one up to that step is shown.
  function seekStep(step) {
    const after = frames.findIndex((frame) => (frame.step ?? 0) > step);
    seek(after < 0 ? last() : Math.max(0, after - 1));
  }

  panels = seats.map(seatPanel);
  data.frames.forEach(add);
  data.frames = null;
  by("scrub").max = String(last());
  heading();
  footer();
  logs();
  listen();
  show();
  marks();
  begin();
  window.addEventListener("hashchange", begin);
  const stepNow = () => (frames.length ? frames[index()].step ?? index() : 0);
  window.harena = { append, finish, seek, play, redraw, frame: index, step: stepNow, count: () => frames.length };
})();
