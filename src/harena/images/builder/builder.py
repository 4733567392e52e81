"""Carries out a Dockerfile, step by step.

Each RUN gets a box on the layers so far. What it changed becomes an archive (`pack`), which is unpacked as a layer like
one from a registry: nothing that a command of the build made is trusted. COPY makes such an archive of files. A step
is cached by what it depends on: the layers below, the instruction after its variables, and the content of copied files.

Guarantees: what is not supported is refused with its line before anything runs; a build that fails or is killed leaves
no image, and layers that the next build of the same file uses; RUN reaches only what the caller names.

One file, however long: instructions of all kinds change one state, and its key in the cache depends on all of it.
"""

from __future__ import annotations

import contextlib
import dataclasses
import errno
import functools
import hashlib
import importlib
import json
import os
import posixpath
import re
import stat
import time
from collections.abc import Callable, Generator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, BinaryIO, cast

from harena.errors import HarenaError, SpecError
from harena.images.builder import dockerfile as docker
from harena.images.builder import pack, packer
from harena.images.builder.dockerfile import DockerfileError, expand
from harena.images.builder.ignore import Ignore
from harena.images.builder.packer import Meta, Owners, PackError, PathMatch, Placement, TarWriter
from harena.images.errors import ImageCancelled, ImageError, ImageNotFound, ImageStoreError, RegistryError
from harena.images.files import explained
from harena.images.manifest import MAX_CONFIG, MAX_LAYERS, Descriptor, ImageConfig, make_manifest, parse_config
from harena.images.reference import Digest, Platform, Reference
from harena.images.store.archives import layer_type
from harena.images.store.image_store import ImageStore
from harena.images.store.layers import Progress
from harena.images.store.leases import Image, ImageLayer, Lease
from harena.images.unpack.untar import shown
from harena.terminal import safe

VERSION = 1
"""Part of every key of the cache: raise it when the same step makes something else."""
ROOT_MB = 4096
SHELL = ("/bin/sh", "-c")
MAX_ENV = 1 << 20
"""Bytes of all variables of a stage."""
EPOCH = "1970-01-01T00:00:00Z"
ARCHIVES = (b"\x1f\x8b", b"BZh", b"\xfd7zXZ", b"\x28\xb5\x2f\xfd")

Report = Callable[[str, str], None]
"""Called with `step`, `cached`, `output` or `done`, and a text that may hold anything."""


RunStep = Callable[..., contextlib.AbstractContextManager[Any]]
"""Runs a command in a box on layers: see `harena.backends.local.building.run_step`."""


class BuildFailed(ImageError):
    """A step of a build failed. The message names its line."""


@dataclass
class _BuildState:
    """A stage under way."""

    platform: Platform
    layers: list[ImageLayer] = field(default_factory=list[ImageLayer])
    env: dict[str, str] = field(default_factory=dict[str, str])
    args: dict[str, str] = field(default_factory=dict[str, str])
    cwd: str = "/"
    has_cwd: bool = True
    """Whether the working folder is known to be there."""
    user: str = ""
    shell: tuple[str, ...] = SHELL
    entrypoint: tuple[str, ...] = ()
    cmd: tuple[str, ...] = ()
    own_cmd: bool = False
    labels: dict[str, str] = field(default_factory=dict[str, str])
    ports: dict[str, Any] = field(default_factory=dict[str, Any])
    volumes: dict[str, Any] = field(default_factory=dict[str, Any])
    health: Any = None
    stop_signal: str = ""
    history: list[dict[str, Any]] = field(default_factory=list[dict[str, Any]])
    created: str = EPOCH

    @property
    def chain(self) -> list[str]:
        return [str(layer.diff_id) for layer in self.layers]

    def scope(self) -> dict[str, str]:
        """Variables that instructions see."""
        return {**self.args, **self.env}


class Builder:
    def __init__(
        self,
        store: ImageStore,
        context: Path,
        *,
        file: Path | str | None,
        args: Mapping[str, str],
        target: str | None,
        use_cache: bool,
        network: Sequence[str],
        root_mb: int,
        report: Report,
        progress: Progress | None,
        run_step: RunStep | None,
    ) -> None:
        self._network = sorted({name for name in network if name != "none"})
        if self._network:
            # Refuses a bad entry before anything is built.
            importlib.import_module("harena.sandbox.network").Network(allow=self._network)
        self._given_step = run_step
        self._store, self._use_cache, self._report, self._progress = store, use_cache, report, progress
        self._root_mb = root_mb
        if not context.is_dir():
            raise DockerfileError(f"{context} is not a folder: give the folder of the build's files")
        self._context = os.fsencode(os.path.realpath(context))
        path = Path(file) if file is not None else context / "Dockerfile"
        self._file = docker.parse(_read(path))
        own = path.with_name(path.name + ".dockerignore")
        ignore = own if own.exists() else context / ".dockerignore"
        self._ignore = Ignore.parse(_read(ignore)) if ignore.exists() else Ignore()
        self._given = dict(args)
        self._platform = Platform.of_host()
        self._globals = self._global_args()
        self._target = self._stage_named(target) if target else len(self._file.stages) - 1
        if self._target is None:
            raise DockerfileError(f"the Dockerfile has no stage {target!r:.80}")
        self._needed = self._needed_stages()
        self._states: dict[int, _BuildState] = {}
        self._foreign: dict[str, list[ImageLayer]] = {}
        """Layers of images that COPY --from names."""
        self._held: list[Path] = []
        self._stack = contextlib.ExitStack()
        self._check()

    def __enter__(self) -> Builder:
        self._scratch = self._stack.enter_context(self._store.scratch("build"))
        return self

    def __exit__(self, *exc: object) -> None:
        self._stack.close()
        held, self._held = self._held, []
        self._store.release_layers(held)

    def run(self, name: Reference | None) -> Image:
        for index in self._needed:
            self._states[index] = self._run_stage(index)
        state = self._states[cast("int", self._target)]
        config = _config(state)
        blobs = tuple(Descriptor(layer_type(layer), layer.digest, layer.size) for layer in state.layers)
        reference = name or Reference.parse(f"build:{Digest.of(config).short}")
        manifest = make_manifest(config, blobs)
        image = self._store.add_built(reference, self._platform, manifest, config, tuple(state.layers))
        self._report("done", reference.familiar)
        return image

    # ---- before anything runs ----

    def _global_args(self) -> dict[str, str]:
        host = self._platform
        scope = {
            f"{side}{key}": value
            for side in ("TARGET", "BUILD")
            for key, value in {
                "PLATFORM": str(host), "OS": host.os, "ARCH": host.architecture, "VARIANT": host.variant,
            }.items()
        }  # fmt: skip
        declared = {one.name for one in self._file.args}
        for stage in self._file.stages:
            declared |= {one.name for one in stage.instructions if isinstance(one, docker.Arg)}
        for name in self._given:
            if name not in declared:
                raise DockerfileError(f"--build-arg {name[:80]}: the Dockerfile has no ARG {name[:80]}")
        for arg in self._file.args:
            value = self._given.get(arg.name)
            if value is None and arg.default is not None:
                value = self._expand(arg.line, arg.default, scope)
            if value is not None:
                scope[arg.name] = value
        return scope

    def _stage_named(self, text: str, before: int | None = None) -> int | None:
        """Number of the stage with a name or a number."""
        stages = self._file.stages[:before]
        for index in reversed(range(len(stages))):
            if stages[index].start.name == text.lower():
                return index
        return int(text) if re.fullmatch(r"[0-9]{1,4}", text) and int(text) < len(stages) else None

    def _base(self, index: int) -> str:
        start = self._file.stages[index].start
        base = self._expand(start.line, start.image, self._globals)
        if not base:
            raise DockerfileError(f"line {start.line}: FROM {start.image[:80]}: the name is empty after its variables")
        return base

    def _base_stage(self, index: int) -> int | None:
        """The earlier stage that a stage begins with. Numbers are for COPY only."""
        base = self._base(index)
        return None if base.isdecimal() else self._stage_named(base, before=index)

    def _needed_stages(self) -> list[int]:
        needed: set[int] = set()
        pending = [cast("int", self._target)]
        while pending:
            index = pending.pop()
            if index in needed:
                continue
            needed.add(index)
            base = self._base_stage(index)
            pending += [] if base is None else [base]
            for one in self._file.stages[index].instructions:
                if isinstance(one, docker.Copy) and one.stage:
                    found = self._stage_named(one.stage, before=index)
                    pending += [] if found is None else [found]
        return sorted(needed)

    def _check(self) -> None:
        """Refuse what cannot be built."""
        for index in self._needed:
            stage = self._file.stages[index]
            line = stage.start.line
            wanted = self._expand(line, stage.start.platform, self._globals)
            if wanted and Platform.parse(wanted) != self._platform:
                raise DockerfileError(f"line {line}: FROM --platform={wanted[:80]}: only {self._platform} can run here")
            base = self._base(index)
            if self._base_stage(index) is None and base != "scratch":
                _with_line(line, Reference.parse, base)
            for one in stage.instructions:
                self._check_instruction(index, one)

    def _check_instruction(self, index: int, one: docker.Instruction) -> None:
        if isinstance(one, docker.Copy):
            if one.stage:
                if self._stage_named(one.stage, before=index) is None:
                    if self._stage_named(one.stage) is not None:
                        raise DockerfileError(
                            f"line {one.line}: COPY --from={one.stage[:80]}: the stage is not earlier"
                        )
                    _with_line(one.line, Reference.parse, one.stage)
            elif not any("$" in source for source in one.sources):
                self._find_in_context(one, [expand(source, {}, self._file.escape) for source in one.sources])
        elif isinstance(one, docker.Words) and one.name == "EXPOSE":
            for word in one.values:
                if "$" not in word:
                    _port(one.line, word)

    # ---- stages ----

    def _run_stage(self, index: int) -> _BuildState:
        stage = self._file.stages[index]
        base, earlier = self._base(index), self._base_stage(index)
        self._report(
            "step", f"line {stage.start.line}: FROM {base}{f' AS {stage.start.name}' if stage.start.name else ''}"
        )
        if earlier is not None:
            found = self._states[earlier]
            state = _copied(found)
        elif base == "scratch":
            state = _BuildState(self._platform)
        else:
            state = _with_line(stage.start.line, self._begin, base)
        for one in stage.instructions:
            try:
                self._step(index, state, one)
            except (DockerfileError, BuildFailed, ImageStoreError, RegistryError, ImageCancelled):
                raise
            except (PackError, ImageError, SpecError) as error:
                raise BuildFailed(f"line {one.line}: {error}") from None
            if sum(len(key) + len(value) for key, value in state.scope().items()) > MAX_ENV:
                raise DockerfileError(f"line {one.line}: all variables together have more than {MAX_ENV} characters")
        return state

    def _begin(self, name: str) -> _BuildState:
        image = self._image(name)
        raw = self._store.raw_config(image)
        inner: dict[str, Any] = raw.get("config") or {}
        if inner.get("OnBuild"):
            raise BuildFailed(f"{name} has ONBUILD instructions, which are not supported")
        config = image.config
        history = raw.get("history")
        return _BuildState(
            self._platform,
            layers=list(image.layers),
            env=dict(config.env),
            cwd=config.cwd,
            has_cwd=config.cwd == "/",
            user=config.user,
            shell=config.shell or SHELL,
            entrypoint=config.entrypoint,
            cmd=config.cmd,
            labels=dict(config.labels),
            ports={key: {} for key in config.exposed_ports},
            volumes={key: {} for key in config.volumes},
            health=inner.get("Healthcheck"),
            stop_signal=config.stop_signal,
            history=history_of(history, len(image.layers), config.created or EPOCH),
            created=config.created or EPOCH,
        )

    def _image(self, name: str) -> Image:
        """Find or pull an image, and keep its layers until the end."""
        for _ in range(2):
            image = self._store.find(name) or self._store.pull(name, progress=self._progress)
            folders = [self._store.hold_layer(layer) for layer in dict.fromkeys(image.layers)]
            self._held += [folder for folder in folders if folder is not None]
            if None not in folders:
                return image
        raise ImageNotFound(f"a layer of {name} was removed: run `harena image pull {name}`")

    def _step(self, index: int, state: _BuildState, one: docker.Instruction) -> None:
        line = one.line
        match one:
            case docker.RunStep():
                self._run(state, one)
            case docker.Copy():
                self._copy(index, state, one)
            case docker.Env():
                values = [(key, self._expand(line, value, state.scope())) for key, value in one.values]
                state.env |= dict(values)
                self._note(state, "ENV " + " ".join(f"{key}={value}" for key, value in values))
            case docker.Arg():
                self._arg(state, one)
            case docker.Label():
                values = [(key, self._expand(line, value, state.scope())) for key, value in one.values]
                state.labels |= dict(values)
                self._note(state, "LABEL " + " ".join(f"{key}={value}" for key, value in values))
            case docker.Setting(name="WORKDIR"):
                self._workdir(state, one)
            case docker.Setting():
                value = self._expand(line, one.value, state.scope())
                if one.name == "USER":
                    state.user = value
                else:
                    state.stop_signal = value
                self._note(state, f"{one.name} {value}")
            case docker.Words(name="SHELL"):
                state.shell = one.values
                self._note(state, f"SHELL {json.dumps(one.values)}")
            case docker.Words():
                words = [self._expand(line, word, state.scope()) for word in one.values]
                if one.name == "EXPOSE":
                    state.ports |= {_port(line, word): {} for word in words}
                else:
                    state.volumes |= {word: {} for word in words}
                self._note(state, f"{one.name} {' '.join(words)}")
            case docker.Start():
                self._start(state, one)
            case docker.HealthCheck():
                state.health = _health(one)
                self._note(state, "HEALTHCHECK")

    def _arg(self, state: _BuildState, one: docker.Arg) -> None:
        value = self._given.get(one.name)
        if value is None and one.default is not None:
            value = self._expand(one.line, one.default, state.scope())
        if value is None:
            value = self._globals.get(one.name)
        if value is not None:
            state.args[one.name] = value

    def _start(self, state: _BuildState, one: docker.Start) -> None:
        words = one.command if isinstance(one.command, tuple) else (*state.shell, one.command)
        if not one.command:
            words = ()
        if one.name == "CMD":
            state.cmd, state.own_cmd = words, True
        else:
            state.entrypoint = words
            if not state.own_cmd:  # that of the base image was meant for its own entry point
                state.cmd = ()
        self._note(state, f"{one.name} {json.dumps(words)}")

    def _note(self, state: _BuildState, text: str, *, has_layer: bool = False) -> None:
        entry: dict[str, Any] = {"created": state.created, "created_by": text[:4096]}
        state.history.append(entry if has_layer else {**entry, "empty_layer": True})

    def _expand(self, line: int, text: str, scope: Mapping[str, str]) -> str:
        return _with_line(line, expand, text, scope, self._file.escape)

    # ---- layers ----

    def _cached(self, state: _BuildState, key: str, text: str) -> bool:
        fields = self._store.find_step(key) if self._use_cache else None
        if fields is None:
            return False
        diff_id, size, created = (fields.get(name) for name in ("diff_id", "size", "created"))
        if not isinstance(diff_id, str) or not isinstance(size, int) or not isinstance(created, str):
            return False
        if diff_id:
            layer = ImageLayer(Digest.parse(diff_id), Digest.parse(diff_id), size)
            folder = self._store.hold_layer(layer)
            if folder is None:
                return False
            self._held.append(folder)
            state.layers.append(layer)
        state.created = created
        self._report("cached", text)
        self._note(state, text, has_layer=bool(diff_id))
        return True

    def _add_layer(self, state: _BuildState, key: str, text: str, file: BinaryIO | None) -> None:
        """Store the archive of a step as a layer, and note it for the next build. None: it changed nothing."""
        state.created = time.strftime("%Y-%m-%dT%H:%M:%SZ", time.gmtime())
        diff_id, size = "", 0
        if file is not None:
            if len(state.layers) >= MAX_LAYERS - 2:
                raise BuildFailed(f"the image has more than {MAX_LAYERS - 2} layers")
            file.seek(0)
            digest = Digest("sha256", hashlib.file_digest(cast("Any", file), "sha256").hexdigest())
            size = file.seek(0, os.SEEK_END)
            layer = ImageLayer(digest, digest, size)
            folder = self._store.hold_layer(layer, file)
            assert folder is not None
            self._held.append(folder)
            state.layers.append(layer)
            diff_id = str(digest)
        self._store.note_step(key, {"diff_id": diff_id, "size": size, "created": state.created})
        self._note(state, text, has_layer=bool(diff_id))

    def _key(self, state: _BuildState, *words: object) -> str:
        """Return the cache key of a step: a hash of everything it depends on."""
        parts = [VERSION, self._store.layers.ids.name, state.chain, *words]
        return hashlib.sha256(json.dumps(parts, sort_keys=True).encode()).hexdigest()

    @contextlib.contextmanager
    def _spool(self) -> Generator[BinaryIO]:
        path = self._scratch / f"archive-{len(self._held)}"
        with explained("the files of a step cannot be stored"), open(path, "x+b") as file:
            path.unlink()
            yield file

    @contextlib.contextmanager
    def _mounted(self, layers: Sequence[ImageLayer]) -> Generator[tuple[tuple[str, ...], Owners | None]]:
        """Folders of layers, and the owners of files that the disk does not have."""
        with self._lease(layers) as lease:
            yield lease.layers, pack.owners_of(lease.layers, self._store.layers.ids)

    def _lease(self, layers: Sequence[ImageLayer]) -> Lease:
        return Image(self._store, "build:none", "", "", str(self._platform), tuple(layers), ImageConfig()).lease()

    # ---- RUN ----

    @functools.cached_property
    def _run_step(self) -> RunStep:
        if self._given_step is not None:
            return self._given_step
        # Boxes are above this package, which knows them only by name, as the registry of backends does.
        return importlib.import_module("harena.sandbox.backend").load("local").run_step

    def _run(self, state: _BuildState, one: docker.RunStep) -> None:
        argv = one.command if isinstance(one.command, tuple) else (*state.shell, one.command)
        text = f"RUN {one.command if isinstance(one.command, str) else json.dumps(one.command)}"
        title = f"line {one.line}: {text}"
        if not state.has_cwd:
            self._make_folder(state, one.line, state.cwd)
            state.has_cwd = True
        env = {**state.args, **state.env}
        key = self._key(state, "run", argv, sorted(env.items()), state.user, state.cwd, *self._network)
        if self._cached(state, key, text):
            return
        self._report("step", title)
        with self._spool() as spool:
            count = self._run_box(state, one.line, argv, env, spool)
            self._add_layer(state, key, text, spool if count else None)

    def _run_box(self, state: _BuildState, line: int, argv: Sequence[str], env: dict[str, str], spool: BinaryIO) -> int:
        """Run a command in a box on the layers, and write what it changed. Returns the number of changed files."""
        ids = self._store.layers.ids
        with self._mounted(state.layers) as (layers, owners):
            step = self._run_step(
                argv, layers=layers, ids=ids, user=state.user, env=env, cwd=state.cwd, root_mb=self._root_mb,
                network=self._network, on_output=self._show,
            )  # fmt: skip
            with step as (result, changes, own_files):
                if not result.ok:
                    code = result.exit_code
                    how = f"exit code {code}" if code is not None else f"it was ended ({result.verdict.value})"
                    raise BuildFailed(f"line {line}: RUN {safe(' '.join(argv))[:200]}: {how}{_refused(result)}")
                most = 2 * (self._root_mb << 20) + (1 << 30)
                return pack.pack_folder(changes, spool, ids=ids, skip=own_files, owners=owners, most_bytes=most)

    def _show(self, output: bytes) -> None:
        self._report("output", output.decode("utf-8", "replace"))

    # ---- COPY ----

    def _find_in_context(self, one: docker.Copy, sources: Sequence[str]) -> list[PathMatch]:
        name = "ADD" if one.is_add else "COPY"
        try:
            matches = packer.scan(self._context, sources, self._ignore)
        except PackError as error:
            raise DockerfileError(f"line {one.line}: {name}: {safe(str(error))}") from None
        except OSError as error:
            raise DockerfileError(f"line {one.line}: {name}: {error.filename!r:.200}: {error.strerror}") from None
        for match in matches if one.is_add else ():
            if not match.is_folder and _is_archive(os.path.join(self._context, match.path)):
                raise DockerfileError(
                    f"line {one.line}: ADD of the archive {os.fsdecode(match.name)[:80]!r} is not supported: unpack "
                    "it in the build context, or COPY it and unpack it in a RUN"
                )
        return matches

    def _copy(self, index: int, state: _BuildState, one: docker.Copy) -> None:
        scope = state.scope()
        sources = [self._expand(one.line, source, scope) for source in one.sources]
        target = self._expand(one.line, one.target, scope)
        chown = self._expand(one.line, one.owner, scope)
        options = (f" --from={one.stage}" if one.stage else "") + (f" --chown={chown}" if chown else "")
        options += "" if one.mode is None else f" --chmod={one.mode:o}"
        text = f"{'ADD' if one.is_add else 'COPY'}{options} {' '.join([*sources, target])}"
        with contextlib.ExitStack() as stack:
            spool = stack.enter_context(self._spool())
            layers, owners = stack.enter_context(self._mounted(state.layers))
            owner = self._owner(chown, layers)
            if one.stage:
                origin = stack.enter_context(self._mounted(self._origin(index, one)))
                matches = pack.scan(origin[0], sources, ids=self._store.layers.ids)
                placement = self._place(state, one, target, matches, layers, owners, owner)
                content = pack.copy(origin[0], matches, placement, spool, ids=self._store.layers.ids, owners=origin[1])
            else:
                matches = self._find_in_context(one, sources)
                placement = self._place(state, one, target, matches, layers, owners, owner)
                out = TarWriter(spool.write, most_bytes=pack.MOST_BYTES)
                packer.copy(out, self._context, matches, placement, ignore=self._ignore, is_context=True)
                spool.flush()
                content = out.key
            key = self._key(state, "copy", content)
            if not self._cached(state, key, text):
                self._report("step", f"line {one.line}: {text}")
                self._add_layer(state, key, text, spool)

    def _origin(self, index: int, one: docker.Copy) -> list[ImageLayer]:
        """Layers that COPY --from reads."""
        earlier = self._stage_named(one.stage, before=index)
        if earlier is not None:
            return self._states[earlier].layers
        if one.stage not in self._foreign:
            self._foreign[one.stage] = list(_with_line(one.line, self._image, one.stage).layers)
        return self._foreign[one.stage]

    def _owner(self, text: str, layers: Sequence[str]) -> tuple[int, int] | None:
        ids = self._store.layers.ids
        if not text:
            return None
        owner = pack.find_owner(layers, text, ids=ids)
        if ids.kind == "full" and max(owner) >= ids.count:
            raise PackError(f"--chown={text[:80]}: above the {ids.count} ids of an image")
        return owner

    def _place(
        self,
        state: _BuildState,
        one: docker.Copy,
        target: str,
        matches: list[PathMatch],
        layers: Sequence[str],
        owners: Owners | None,
        owner: tuple[int, int] | None,
    ) -> Placement:
        """Decide where files go, as Docker does. Links of the image on the way are followed."""
        is_folder = target.endswith(("/", "/.")) or target in (".", "..") or len(matches) > 1
        base = os.fsencode(_absolute(state.cwd, target))
        asked = {base, os.path.dirname(base)}
        asked |= {_below(base, rel) for match in matches for rel in match.folders or [match.name]}
        found, folders = pack.resolve(layers, sorted(asked), ids=self._store.layers.ids, owners=owners)
        real, kind = found[base]
        is_folder = is_folder or kind == "folder" or any(match.is_folder for match in matches)
        if is_folder and kind == "file":
            raise BuildFailed(f"line {one.line}: {target[:200]!r} is a file in the image, and not a folder")
        targets: list[dict[bytes, bytes]] = []
        for match in matches:
            if match.is_folder:
                places = {rel: found[_below(base, rel)] for rel in match.folders}
                for rel, (_, kind) in places.items():
                    if kind == "file":
                        raise BuildFailed(f"line {one.line}: '/{shown(_below(base, rel))}' is a file in the image")
                targets.append({rel: place for rel, (place, _) in places.items()})
            elif is_folder:
                if found[_below(base, match.name)][1] == "folder":
                    raise BuildFailed(f"line {one.line}: '/{shown(_below(base, match.name))}' is a folder in the image")
                targets.append({b"": _below(real, match.name)})
            else:
                targets.append({b"": _below(found[os.path.dirname(base)][0], os.path.basename(base))})
        parents = [real] if is_folder else [os.path.dirname(target[b""]) for target in targets]
        made = _missing(parents, folders)
        return Placement(folders, made, targets, owner, one.mode)

    # ---- WORKDIR ----

    def _workdir(self, state: _BuildState, one: docker.Setting) -> None:
        value = self._expand(one.line, one.value, state.scope())
        state.cwd = _absolute(state.cwd, value)
        state.cwd = "/" + state.cwd
        if not self._make_folder(state, one.line, state.cwd):
            self._note(state, f"WORKDIR {state.cwd}")
        state.has_cwd = True

    def _make_folder(self, state: _BuildState, line: int, path: str) -> bool:
        """Make a folder unless it is there. True: a layer was added."""
        text = f"WORKDIR {path}"
        with self._spool() as spool, self._mounted(state.layers) as (layers, owners):
            wanted = os.fsencode(path.strip("/"))
            found, folders = pack.resolve(layers, [wanted], ids=self._store.layers.ids, owners=owners)
            real, kind = found[wanted]
            if kind == "file":
                raise BuildFailed(f"line {line}: WORKDIR {path[:200]}: it is a file in the image, and not a folder")
            if kind == "folder":
                return False
            out = TarWriter(spool.write, most_bytes=pack.MOST_BYTES)
            packer.copy(out, b"/", [], Placement(folders, _missing([real], folders), []))
            spool.flush()
            key = self._key(state, "folder", out.key)
            if not self._cached(state, key, text):
                self._report("step", f"line {line}: {text}")
                self._add_layer(state, key, text, spool)
        return True


# ---- details ----


def _with_line(line: int, function: Callable[..., Any], *arguments: Any) -> Any:
    """Say in errors which line they are about."""
    try:
        return function(*arguments)
    except DockerfileError as error:
        raise DockerfileError(f"line {line}: {error}") from None
    except (ImageStoreError, RegistryError, ImageCancelled):
        raise
    except HarenaError as error:
        raise BuildFailed(f"line {line}: {error}") from error


def _read(path: Path) -> str:
    try:
        return _head_of(path, docker.MAX_BYTES + 1).decode()
    except OSError as error:
        raise DockerfileError(f"{path} cannot be read: {error.strerror}") from None
    except UnicodeDecodeError:
        raise DockerfileError(f"{path} is not UTF-8 text") from None


def _head_of(path: Path | bytes, count: int) -> bytes:
    """The first bytes of a plain file. A pipe or a device of a hostile build context would keep its reader waiting."""
    fd = os.open(path, os.O_RDONLY | os.O_NONBLOCK | os.O_CLOEXEC)
    with open(fd, "rb") as file:
        if not stat.S_ISREG(os.fstat(fd).st_mode):
            raise OSError(errno.EINVAL, "not a plain file")
        return file.read(count)


def _absolute(cwd: str, path: str) -> str:
    """A path of an image, without its first slash."""
    if "\0" in path:
        raise DockerfileError("a path has a NUL byte")
    return posixpath.normpath(posixpath.join("/", cwd, path)).strip("/")


def _below(folder: bytes, name: bytes) -> bytes:
    return folder + b"/" + name if folder and name else folder or name


def _missing(paths: Sequence[bytes], there: Mapping[bytes, Meta]) -> list[bytes]:
    """Folders to make, with those above them."""
    made: set[bytes] = set()
    for path in paths:
        while path and path not in there:
            made.add(path)
            path = os.path.dirname(path)
    return sorted(made)


def _copied(state: _BuildState) -> _BuildState:
    """A stage that begins with another one."""
    return dataclasses.replace(
        state,
        layers=list(state.layers),
        env=dict(state.env),
        args={},
        own_cmd=False,
        labels=dict(state.labels),
        ports=dict(state.ports),
        volumes=dict(state.volumes),
        history=list(state.history),
    )


def _is_archive(path: bytes) -> bool:
    """Whether ADD would unpack a file."""
    try:
        head = _head_of(path, 512)
    except OSError:  # a pipe, for example, or a file that cannot be read, which COPY will say
        return False
    return head.startswith(ARCHIVES) or head[257:262] == b"ustar"


def _port(line: int, text: str) -> str:
    if not re.fullmatch(r"[0-9]{1,5}(-[0-9]{1,5})?(/(tcp|udp|sctp))?", text.lower(), re.ASCII):
        raise DockerfileError(f"line {line}: EXPOSE {text[:40]}: a port, such as 80 or 53/udp")
    return text.lower() if "/" in text else f"{text}/tcp"


def _health(one: docker.HealthCheck) -> dict[str, Any]:
    if one.command is None:
        return {"Test": ["NONE"]}
    test = ["CMD", *one.command] if isinstance(one.command, tuple) else ["CMD-SHELL", one.command]
    options = dict(one.options)
    fields: dict[str, Any] = {"Test": test}
    names = {
        "interval": "Interval", "timeout": "Timeout", "start-period": "StartPeriod", "start-interval": "StartInterval",
    }  # fmt: skip
    fields |= {names[name]: docker.duration_ns(value) for name, value in options.items() if name in names}
    return fields | ({"Retries": int(options["retries"])} if "retries" in options else {})


def history_of(found: object, layers: int, created: str) -> list[dict[str, Any]]:
    """History of a base image, where it fits its layers."""
    if isinstance(found, list):
        items = [cast("dict[str, Any]", item) for item in cast("list[Any]", found) if isinstance(item, dict)]
        if sum(not item.get("empty_layer") for item in items) == layers:
            return items
    return [{"created": created, "created_by": "base image"} for _ in range(layers)]


def _config(state: _BuildState) -> bytes:
    inner: dict[str, Any] = {
        "Env": [f"{key}={value}" for key, value in state.env.items()],
        "WorkingDir": state.cwd,
        "User": state.user,
        "Entrypoint": list(state.entrypoint),
        "Cmd": list(state.cmd),
        "Shell": list(state.shell) if state.shell != SHELL else [],
        "Labels": state.labels,
        "ExposedPorts": state.ports,
        "Volumes": state.volumes,
        "Healthcheck": state.health,
        "StopSignal": state.stop_signal,
    }
    fields = {
        "architecture": state.platform.architecture,
        "os": state.platform.os,
        **({"variant": state.platform.variant} if state.platform.variant else {}),
        "created": state.created,
        "config": {key: value for key, value in inner.items() if value},
        "rootfs": {"type": "layers", "diff_ids": state.chain},
        "history": state.history,
    }
    data = json.dumps(fields, separators=(",", ":")).encode()
    if len(data) > MAX_CONFIG:
        raise BuildFailed(f"the config of the image has more than {MAX_CONFIG} bytes")
    parse_config(data)
    return data


def _refused(result: Any) -> str:
    """What a RUN with a network could not reach, as part of an error."""
    if result.network is None or not result.network.denied:
        return ""
    targets = sorted({safe(denied.target)[:100] for denied in result.network.denied})[:5]
    return f"; it was refused {', '.join(targets)} (allow it with --allow)"
