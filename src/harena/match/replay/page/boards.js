// How each game is drawn. A board has `rate` (steps a second at speed 1), `names` (what an action is called), `score`
// (the points so far in a view) and `mount(stage, seats)`, which returns draw(scene). A scene has the frame, its index,
// all frames, the next one and `t`, how far the playback is on the way there. Everything is drawn from data that
// strangers wrote: text goes into text nodes only.
"use strict";

const boards = (() => {
  const SVG = "http://www.w3.org/2000/svg";

  function svg(name, attributes, ...children) {
    const node = document.createElementNS(SVG, name);
    for (const [key, value] of Object.entries(attributes)) node.setAttribute(key, value);
    node.append(...children);
    return node;
  }

  function element(name, className, text) {
    const node = document.createElement(name);
    if (className) node.className = className;
    if (text !== undefined) node.textContent = text;
    return node;
  }

  const seatColour = (seat) => `var(--seat${seat % 8})`;

  // A canvas cannot read light-dark(): an element resolves it for the theme that applies.
  const probe = document.documentElement.appendChild(element("span"));
  probe.hidden = true;
  function colour(name) {
    probe.style.color = `var(--${name})`;
    return getComputedStyle(probe).color;
  }

  // A canvas that is sharp on any screen. `paint(context, width, height)` works in CSS pixels.
  function sharpCanvas(stage, ratio, className) {
    const canvas = element("canvas", className);
    canvas.setAttribute("role", "img");
    stage.replaceChildren(canvas);
    const context = canvas.getContext("2d");
    return {
      canvas,
      paint(draw) {
        const width = canvas.clientWidth || 600;
        const height = Math.round(width / ratio);
        const scale = window.devicePixelRatio || 1;
        if (canvas.width !== Math.round(width * scale) || canvas.height !== Math.round(height * scale)) {
          canvas.width = Math.round(width * scale);
          canvas.height = Math.round(height * scale);
        }
        context.setTransform(scale, 0, 0, scale, 0, 0);
        context.clearRect(0, 0, width, height);
        draw(context, width, height);
      },
    };
  }

  function figure(stage, width, height, className) {
    const root = svg("svg", { viewBox: `0 0 ${width} ${height}`, role: "img", class: className || "" });
    stage.replaceChildren(root);
    return root;
  }

  const between = (a, b, t) => a + (b - a) * t;

  const pong = {
    rate: 30,
    names: ["up", "stay", "down"],
    score: (view) => view.scores,
    mount(stage) {
      const { canvas, paint } = sharpCanvas(stage, 1.6);
      return ({ frame, next, t, frames, index }) => {
        const view = frame.view;
        const ahead = next && !jumped(view, next.view) ? next.view : null;
        const ball = ahead
          ? { x: between(view.ball.x, ahead.ball.x, t), y: between(view.ball.y, ahead.ball.y, t) }
          : view.ball;
        const paddles = view.paddles.map((paddle, seat) => ({
          x: paddle.x,
          y: next ? between(paddle.y, next.view.paddles[seat].y, t) : paddle.y,
        }));
        canvas.setAttribute("aria-label", `Pong, ${view.scores[0]} to ${view.scores[1]}`);
        paint((context, width, height) => {
          field(context, width, height, view.scores);
          trail(context, width, height, frames, index);
          const thick = Math.max(6, width * 0.014);
          paddles.forEach((paddle, seat) => {
            context.fillStyle = colour(`seat${seat}`);
            const tall = view.paddle_height * height;
            const x = seat === 0 ? paddle.x * width - thick : paddle.x * width;
            context.beginPath();
            context.roundRect(x, paddle.y * height - tall / 2, thick, tall, thick / 2);
            context.fill();
          });
          context.fillStyle = colour("ink");
          context.beginPath();
          context.arc(ball.x * width, ball.y * height, Math.max(5, width * 0.011), 0, 7);
          context.fill();
        });
      };
    },
  };

  // A point was made between the two: the ball was put back in the middle and must not fly there.
  const jumped = (one, two) => one.scores[0] !== two.scores[0] || one.scores[1] !== two.scores[1];

  function field(context, width, height, scores) {
    context.fillStyle = colour("field");
    context.beginPath();
    context.roundRect(0, 0, width, height, 8);
    context.fill();
    context.strokeStyle = colour("line");
    context.lineWidth = 2;
    context.setLineDash([8, 10]);
    context.beginPath();
    context.moveTo(width / 2, 8);
    context.lineTo(width / 2, height - 8);
    context.stroke();
    context.setLineDash([]);
    context.font = `600 ${Math.round(height * 0.15)}px system-ui, sans-serif`;
    context.textAlign = "center";
    context.fillStyle = colour("line");
    scores.forEach((points, seat) => context.fillText(points, width * (seat ? 0.66 : 0.34), height * 0.2));
  }

  function trail(context, width, height, frames, index) {
    context.fillStyle = colour("ink");
    for (let back = 1; back <= 9; back += 1) {
      const old = frames[index - back + 1];
      if (!old || jumped(old.view, frames[index].view)) break;
      context.globalAlpha = 0.16 * (1 - back / 10);
      context.beginPath();
      context.arc(old.view.ball.x * width, old.view.ball.y * height, Math.max(3, width * 0.009), 0, 7);
      context.fill();
    }
    context.globalAlpha = 1;
  }

  const tictactoe = {
    rate: 1.5,
    name: (action) => `row ${Math.floor(action / 3) + 1}, column ${(action % 3) + 1}`,
    mount(stage) {
      const root = figure(stage, 306, 306, "square");
      return ({ frame: { view } }) => {
        root.setAttribute("aria-label", `Tic-tac-toe, ${view.cells.filter(Boolean).length} marks`);
        root.replaceChildren();
        for (const at of [103, 203]) {
          for (const line of [{ x1: at, x2: at, y1: 12, y2: 294 }, { y1: at, y2: at, x1: 12, x2: 294 }]) {
            root.append(svg("line", { ...line, stroke: "var(--line)", "stroke-width": 4, "stroke-linecap": "round" }));
          }
        }
        view.cells.forEach((cell, at) => {
          const [x, y] = [(at % 3) * 100 + 53, Math.floor(at / 3) * 100 + 53];
          if ((view.line && view.line.includes(at)) || view.last === at) {
            const strong = view.line && view.line.includes(at);
            const look = { fill: seatColour(cell - 1), "fill-opacity": strong ? 0.2 : 0.09 };
            root.append(svg("rect", { x: x - 44, y: y - 44, width: 88, height: 88, rx: 12, ...look }));
          }
          const stroke = { stroke: seatColour(cell - 1), "stroke-width": 10, fill: "none", "stroke-linecap": "round" };
          if (cell === 1) root.append(svg("path", { d: `M${x - 25} ${y - 25}l50 50m0-50l-50 50`, ...stroke }));
          if (cell === 2) root.append(svg("circle", { cx: x, cy: y, r: 28, ...stroke }));
        });
      };
    },
  };

  const connectFour = {
    rate: 2,
    name: (action) => `column ${action + 1}`,
    mount(stage) {
      let root = null;
      return ({ frame: { view } }) => {
        const { rows, columns } = view;
        root = root || figure(stage, columns * 60 + 20, rows * 60 + 44, "board");
        root.setAttribute("aria-label", `Connect four, ${view.cells.filter(Boolean).length} discs`);
        const panel = { x: 0, y: 0, width: columns * 60 + 20, height: rows * 60 + 20, rx: 16, fill: "var(--sunk)" };
        root.replaceChildren(svg("rect", panel));
        view.cells.forEach((cell, at) => {
          const [cx, cy] = [(at % columns) * 60 + 40, Math.floor(at / columns) * 60 + 40];
          const fill = cell ? seatColour(cell - 1) : "var(--field)";
          root.append(svg("circle", { cx, cy, r: 24, fill }));
          const inner = { cx, cy, fill: "none", stroke: "var(--card)", "stroke-width": 3 };
          if (cell === 2) root.append(svg("circle", { ...inner, r: 15, "stroke-opacity": 0.65 }));
          if (view.line && view.line.includes(at)) root.append(svg("circle", { ...inner, r: 8, fill: "var(--card)" }));
          if (view.last === at) {
            root.append(svg("circle", { cx, cy, r: 27, fill: "none", stroke: "var(--ink)", "stroke-width": 3 }));
          }
        });
        for (let column = 0; column < columns; column += 1) {
          const place = { x: column * 60 + 40, y: rows * 60 + 39, "text-anchor": "middle", "font-size": 17, class: "soft" };
          const label = svg("text", place);
          label.textContent = column + 1;
          root.append(label);
        }
      };
    },
  };

  const SIGNS = {
    rock: "M-32 20l-4-20 14-22 26-8 24 12 8 24-10 18-30 8zM-22-22l16 16 34-12M-6-6l-6 34",
    paper: "M-24-34h34l16 16v52h-50zM10-34v16h16M-14-4h28M-14 8h28M-14 20h18",
    scissors: "M-26-34l34 50M26-34l-34 50M-14 32a9 9 0 1 1 .1-.1M26 32a9 9 0 1 1 .1-.1",
  };

  function label(x, y, size, text, extra) {
    const node = svg("text", { x, y, "font-size": size, "text-anchor": "middle", ...extra });
    node.textContent = text;
    return node;
  }

  const rps = {
    rate: 2,
    names: ["rock", "paper", "scissors"],
    score: (view) => view.wins,
    mount(stage) {
      const root = figure(stage, 480, 280, "board");
      return ({ frame, frames, index }) => {
        const { view } = frame;
        root.setAttribute("aria-label", `Round ${view.round}: ${view.last ? view.last.join(" against ") : "not started"}`);
        root.replaceChildren(label(240, 24, 17, `round ${view.round} of ${view.rounds}`, { class: "soft" }));
        [0, 1].forEach((seat) => {
          const x = seat ? 350 : 130;
          const won = frame.rewards && frame.rewards[seat] > 0;
          const look = { fill: seatColour(seat), "fill-opacity": won ? 0.2 : 0.07, stroke: seatColour(seat), "stroke-width": won ? 4 : 0 };
          root.append(svg("circle", { cx: x, cy: 118, r: 72, ...look }));
          const sign = view.last && Object.hasOwn(SIGNS, view.last[seat]) ? view.last[seat] : null;
          if (sign) {
            const line = { fill: "none", stroke: seatColour(seat), "stroke-width": 5, "stroke-linejoin": "round", "stroke-linecap": "round" };
            root.append(svg("path", { d: SIGNS[sign], transform: `translate(${x} 118)`, ...line }));
          }
          root.append(label(x, 216, 19, sign || "…", { "font-weight": 600 }));
        });
        past(root, frames, index);
      };
    },
  };

  // The last rounds: above the line for seat 0, below it for seat 1, on it for a draw.
  function past(root, frames, index) {
    const shown = frames.slice(Math.max(1, index - 35), index + 1);
    const rounds = shown.filter((frame) => frame.view && frame.view.last);
    root.append(svg("line", { x1: 22, x2: 458, y1: 252, y2: 252, stroke: "var(--line)" }));
    rounds.forEach((frame, at) => {
      const seat = (frame.rewards && frame.rewards[0]) > 0 ? 0 : (frame.rewards && frame.rewards[1]) > 0 ? 1 : null;
      const place = { cx: 30 + at * 12, cy: seat === null ? 252 : seat ? 261 : 243, r: 4 };
      root.append(svg("circle", { ...place, fill: seat === null ? "var(--quiet)" : seatColour(seat) }));
    });
  }

  const tron = {
    rate: 8,
    names: ["up", "right", "down", "left"],
    score: (view) => view.scores,
    mount(stage) {
      const { canvas, paint } = sharpCanvas(stage, 1, "square");
      return ({ frame: { view } }) => {
        canvas.setAttribute("aria-label", `Light cycles, ${view.alive.filter(Boolean).length} riding`);
        paint((context, width) => {
          const size = width / view.size;
          const gap = Math.min(1.5, size * 0.08);
          context.fillStyle = colour("field");
          context.beginPath();
          context.roundRect(0, 0, width, width, 8);
          context.fill();
          const colours = view.alive.map((_, seat) => colour(`seat${seat % 8}`));
          view.grid.forEach((row, y) => row.forEach((cell, x) => {
            context.fillStyle = cell ? colours[cell - 1] : colour("line");
            context.globalAlpha = cell ? (view.alive[cell - 1] ? 0.6 : 0.28) : 0.28;
            context.beginPath();
            context.roundRect(x * size + gap, y * size + gap, size - 2 * gap, size - 2 * gap, size * 0.18);
            context.fill();
          }));
          context.globalAlpha = 1;
          view.heads.forEach(([x, y], seat) => head(context, (x + 0.5) * size, (y + 0.5) * size, size, colours[seat], seat, view.alive[seat]));
        });
      };
    },
  };

  function head(context, x, y, size, fill, seat, alive) {
    context.globalAlpha = alive ? 1 : 0.75;
    context.fillStyle = fill;
    context.beginPath();
    context.arc(x, y, size * 0.46, 0, 7);
    context.fill();
    context.fillStyle = colour("card");
    context.font = `700 ${Math.round(size * 0.56)}px system-ui, sans-serif`;
    context.textAlign = "center";
    context.textBaseline = "middle";
    context.fillText(alive ? "ABCDEFGH"[seat % 8] : "×", x, y + size * 0.03);
    context.textBaseline = "alphabetic";
    context.globalAlpha = 1;
  }

  const leduc = {
    rate: 1,
    names: ["fold", "call", "raise"],
    score: (view) => view.chips,
    mount(stage) {
      const root = figure(stage, 480, 300, "board");
      return ({ frame, frames, index }) => {
        const { view } = frame;
        const before = index > 0 ? frames[index - 1].view.previous : null;
        const ended = view.previous && (!before || before.hand !== view.previous.hand) ? view.previous : null;
        const table = ended || view;
        root.setAttribute("aria-label", `Leduc poker, hand ${table.hand + 1}, pot ${table.pot}`);
        root.replaceChildren(svg("rect", { x: 0, y: 0, width: 480, height: 300, rx: 90, fill: "var(--sunk)" }));
        root.append(label(240, 32, 17, `hand ${table.hand + 1} of ${view.hands}`, { class: "soft" }));
        card(root, 240, 116, table.board, "var(--ink)");
        root.append(label(240, 190, 18, `pot ${table.pot}`, { "font-weight": 600 }));
        [0, 1].forEach((seat) => {
          const x = seat ? 386 : 94;
          const folded = ended && !ended.shown && ended.won[seat] < 0;
          card(root, x, 116, table.cards[seat], seatColour(seat), folded);
          root.append(label(x, 190, 17, `bet ${table.bets[seat]}`));
          const result = ended ? (ended.won[seat] > 0 ? `won ${ended.won[seat]}` : ended.won[seat] < 0 ? `lost ${-ended.won[seat]}` : "split") : "";
          const turn = !ended && view.to_move.includes(seat) ? "to move" : "";
          root.append(label(x, 213, 17, result || turn, { "font-weight": 600, ...(turn ? { class: "soft" } : {}) }));
        });
        table.history.forEach((said, round) => {
          const words = said.map((word, at) => `${"AB"[(table.first + at) % 2]} ${word}`).join(" · ");
          root.append(label(240, 246 + round * 24, 17, words, { class: "soft" }));
        });
      };
    },
  };

  function card(root, x, y, value, ink, folded) {
    const frame = { x: x - 33, y: y - 47, width: 66, height: 94, rx: 9, stroke: ink, "stroke-width": 2.5 };
    if (value) {
      root.append(svg("rect", { ...frame, fill: "var(--face)", ...(folded ? { opacity: 0.4 } : {}) }));
      const face = label(x, y + 15, 42, value, { "font-weight": 700, ...(folded ? { opacity: 0.4 } : {}) });
      face.setAttribute("class", "face");
      root.append(face);
    } else {
      root.append(svg("rect", { ...frame, fill: "none", stroke: "var(--line)", "stroke-dasharray": "6 6" }));
    }
  }

  const generic = {
    rate: 4,
    mount(stage) {
      const root = element("div", "generic");
      const text = element("pre", "text");
      const state = element("pre");
      const details = element("details");
      details.append(element("summary", "", "State"), state);
      root.append(text, details);
      stage.replaceChildren(root);
      return ({ frame }) => {
        const hasText = typeof frame.text === "string" && frame.text !== "";
        text.hidden = !hasText;
        text.textContent = hasText ? frame.text : "";
        if (!hasText) details.open = true;
        state.textContent = frame.view === undefined ? "(hidden until the end)" : JSON.stringify(frame.view, null, 2);
      };
    },
  };

  const known = { pong, tictactoe, connect_four: connectFour, rps, tron, leduc };
  return { generic, of: (game) => (Object.hasOwn(known, game) ? known[game] : generic), element, seatColour, colour };
})();
