"""Models by name or path: our own checkpoint (.safetensors), a GGUF file, or a transformers folder of Qwen2 or Llama.

Promises: the same file gives the same weights; what a file lacks is named; no pickle is ever read. A checkpoint of
ours is one file: weights (float32, bfloat16 or 8 bits a weight), shape and tokenizer. A name that is no path is looked
up with huggingface_hub, which may download it; "default" is the model that comes with Harena.
"""

# pyright: reportUnknownMemberType=false, reportUnknownVariableType=false, reportUnknownArgumentType=false
# (torch leaves many of its own types open)

from __future__ import annotations

import json
import logging
import os
from collections.abc import Mapping
from concurrent.futures import Future, ThreadPoolExecutor
from pathlib import Path
from typing import Any, cast

import torch
from torch import Tensor

from harena.azr.model import gguf
from harena.azr.model.decoder import DecoderModel, ModelConfig, from_hf_state
from harena.azr.model.tokenizer import ByteTokenizer, HfTokenizer, TextCodec
from harena.errors import HarenaError, SpecError

SMALL = Path(__file__).parents[1] / "data" / "small.safetensors"
"""The model that comes with Harena."""

PIECE = 1 << 19
"""Values of a GGUF tensor that are read at a time: what they pass through on the way still fits a processor's cache."""

DTYPES = {"f32": torch.float32, "float32": torch.float32, "bf16": torch.bfloat16, "bfloat16": torch.bfloat16}


def load(name: str, *, device: str = "cpu", dtype: str = "f32") -> tuple[DecoderModel, TextCodec]:
    """`dtype` is what the weights are computed with: f32 or bf16, whatever the file holds."""
    if dtype not in DTYPES:
        raise SpecError(f"dtype {dtype!r}: there are {', '.join(DTYPES)}")
    path = SMALL if name == "default" else Path(name)
    try:
        model, state, codec = _read(path, name, DTYPES[dtype])
    except (HarenaError, OSError, MemoryError):
        raise
    except Exception as error:  # readers of others' files raise what they like; that file is what is wrong
        raise SpecError(f"{name}: not a model as it should be: {type(error).__name__}: {str(error)[:300]}") from error
    model.to_empty(device=torch.device(device))
    model.load_state_dict(state)
    return model, codec


def shape_of(name: str) -> ModelConfig | None:
    """The shape of a model, without its weights; None of a name that would have to be downloaded first."""
    path = SMALL if name == "default" else Path(name)
    try:
        if path.suffix == ".safetensors":
            return ModelConfig.from_dict(_about(path)["config"])
        if path.suffix == ".gguf" and path.is_file():
            return gguf.config_of(gguf.GgufFile(path))
        return ModelConfig.from_hf(_json(path / "config.json")) if path.is_dir() else None
    except (HarenaError, OSError):
        raise
    except Exception as error:  # readers of others' files raise what they like; that file is what is wrong
        raise SpecError(f"{name}: not a model as it should be: {type(error).__name__}: {str(error)[:300]}") from error


def tokens_read(name: str) -> int | None:
    """Tokens that a file of ours was pretrained on; None where it does not say."""
    path = Path(name)
    found = _about(path).get("tokens") if path.suffix == ".safetensors" and path.is_file() else None
    return found if isinstance(found, int) else None


def _read(path: Path, name: str, dtype: torch.dtype) -> tuple[DecoderModel, Mapping[str, Tensor], TextCodec]:
    """A model without memory, what is to be in it, and its tokenizer; all three fit each other."""
    if path.suffix == ".safetensors":
        config, state, codec = _own(path)
    elif path.suffix == ".gguf":
        config, state, codec = _gguf(path, dtype)
    elif path.is_file():
        raise SpecError(f"{name}: a model is a .safetensors file of ours, a .gguf file, or a folder of transformers")
    else:
        config, state, codec = _folder(path if path.is_dir() else _downloaded(name))
    if codec.vocab > config.vocab or not all(0 <= end < config.vocab for end in codec.eos):
        raise SpecError(f"{name}: the tokenizer has tokens that the model, with {config.vocab}, has not")
    return _outline(config, state, dtype), state, codec


def _outline(config: ModelConfig, state: Mapping[str, Tensor], dtype: torch.dtype) -> DecoderModel:
    """Nothing is made as large as a file says it is before the file was seen to have it."""
    if config.layers > len(state):
        raise SpecError(f"the weights do not fit the model: {len(state)} of them for {config.layers} layers")
    with torch.device("meta"):
        model = DecoderModel(config).to(dtype)
    wanted = model.state_dict()
    missing = [*(wanted.keys() - state.keys()), *(state.keys() - wanted.keys())]
    if missing:
        raise SpecError(f"the weights do not fit the model: {sorted(missing)[:4]}")
    for name, value in wanted.items():
        if value.shape != state[name].shape:
            raise SpecError(f"{name} is {tuple(state[name].shape)}, and should be {tuple(value.shape)}")
    return model


# ---- our own files ----


def save(
    path: Path,
    model: DecoderModel,
    codec: ByteTokenizer,
    *,
    form: str = "int8",
    note: str = "",
    tokens: int | None = None,
) -> None:
    """`form`: f32, bf16 or int8 (one scale a row; about one byte a weight). `tokens`: that pretraining has read."""
    from safetensors import SafetensorError
    from safetensors.torch import save_file

    tensors: dict[str, Tensor] = {}
    for name, value in model.state_dict().items():
        wide = value.detach().float().cpu()
        if form == "int8" and wide.dim() == 2:
            scale = wide.abs().amax(dim=1).clamp(min=1e-12) / 127
            tensors[f"{name}:scale"] = scale
            tensors[name] = torch.round(wide / scale[:, None]).to(torch.int8)
        elif form in ("bf16", "f32", "int8"):
            tensors[name] = wide.to(torch.bfloat16 if form == "bf16" else torch.float32).contiguous()
        else:
            raise SpecError(f"form {form!r}: there are f32, bf16 and int8")
    about = {"config": model.config.to_dict(), "tokenizer": codec.to_json(), "note": note}
    about |= {} if tokens is None else {"tokens": tokens}
    path.parent.mkdir(parents=True, exist_ok=True)
    part = path.with_suffix(".part")
    try:
        save_file(tensors, part, metadata={"harena": json.dumps(about)})
    except SafetensorError as error:  # a disk that is full, for one
        raise SpecError(f"{path}: {error}") from None
    part.replace(path)


def note_of(path: Path) -> str:
    """What was written beside the weights when they were saved."""
    return str(_about(path).get("note", ""))


def _about(path: Path) -> dict[str, Any]:
    from safetensors import SafetensorError, safe_open

    if not path.is_file():
        hint = ": make it with `harena azr pretrain`" if path == SMALL else ""
        raise SpecError(f"no model at {path}{hint}")
    try:
        with cast(Any, safe_open)(str(path), framework="pt") as file:
            metadata = file.metadata() or {}
    except SafetensorError as error:
        raise SpecError(f"{path} is no safetensors file, or a damaged one: {error}") from None
    if "harena" not in metadata:
        raise SpecError(f"{path.name} is not a checkpoint of Harena's; give the folder of a transformers model instead")
    return cast(dict[str, Any], json.loads(metadata["harena"]))


def _own(path: Path) -> tuple[ModelConfig, dict[str, Tensor], TextCodec]:
    from safetensors.torch import load_file

    about = _about(path)
    raw = load_file(path)
    for name, scale in raw.items():
        if name.endswith(":scale") and scale.shape != raw[name.removesuffix(":scale")].shape[:1]:
            raise SpecError(f"{name} is not one number for each row")
    state = {
        name: value.float() * raw[f"{name}:scale"][:, None] if f"{name}:scale" in raw else value
        for name, value in raw.items()
        if not name.endswith(":scale")
    }
    return ModelConfig.from_dict(about["config"]), state, ByteTokenizer.from_json(about["tokenizer"])


# ---- others' files ----


def _gguf(path: Path, dtype: torch.dtype) -> tuple[ModelConfig, dict[str, Tensor], TextCodec]:
    if not path.is_file():
        raise SpecError(f"no GGUF file at {path}")
    file = gguf.GgufFile(path)
    config = gguf.config_of(file)
    # numpy lets go of the interpreter while it computes, so threads read side by side.
    with ThreadPoolExecutor(len(os.sched_getaffinity(0))) as pool:
        tokenizer = pool.submit(gguf.tokenizer_of, file.metadata)
        state = _dequantised(file, gguf.sources(file, config), dtype, pool)
        backend, ends = tokenizer.result()
    return config, from_hf_state(config, state), HfTokenizer(backend, eos=ends)


def _dequantised(
    file: gguf.GgufFile, sources: Mapping[str, gguf.Source], dtype: torch.dtype, pool: ThreadPoolExecutor
) -> dict[str, Tensor]:
    """Every tensor at the precision it will be used with: the float32 ones of a large model would not fit beside it."""
    file.check({source.name for source in sources.values()})
    state = {name: torch.empty(file.entry(source.name).shape, dtype=dtype) for name, source in sources.items()}

    def piece(name: str, first: int, last: int) -> None:
        state[name][first:last] = torch.from_numpy(file.rows(sources[name].name, first, last))

    def whole(name: str) -> None:
        state[name].copy_(torch.from_numpy(gguf.read(file, sources[name])))

    jobs: list[Future[None]] = []
    for name, tensor in state.items():
        if sources[name].heads or tensor.dim() == 1:
            jobs.append(pool.submit(whole, name))
            continue
        step = max(1, PIECE // tensor.shape[1])
        for first in range(0, tensor.shape[0], step):
            jobs.append(pool.submit(piece, name, first, min(first + step, tensor.shape[0])))
    for job in jobs:
        job.result()
    return state


def _folder(path: Path) -> tuple[ModelConfig, dict[str, Tensor], TextCodec]:
    from safetensors.torch import load_file

    raw = _json(path / "config.json")
    config = ModelConfig.from_hf(raw)
    files = sorted(path.glob("*.safetensors"))
    if not files:
        raise SpecError(f"{path} holds no .safetensors files; pickled weights are not read")
    state: dict[str, Tensor] = {}
    for file in files:
        state.update(load_file(file))
    return config, from_hf_state(config, state), _folder_tokenizer(path, raw)


def _folder_tokenizer(path: Path, config: Mapping[str, Any]) -> TextCodec:
    try:
        import tokenizers
    except ImportError as error:
        raise SpecError("a transformers model needs the `tokenizers` package: pip install tokenizers") from error
    if not (path / "tokenizer.json").is_file():
        raise SpecError(f"{path} holds no tokenizer.json")
    backend: Any = tokenizers.Tokenizer.from_file(str(path / "tokenizer.json"))
    generation = _json(path / "generation_config.json") if (path / "generation_config.json").is_file() else {}
    ends: list[int] = []
    for source in (generation, config):
        value = source.get("eos_token_id")
        ends += value if isinstance(value, list) else [] if value is None else [value]
    if not ends:
        raise SpecError(f"{path}: neither generation_config.json nor config.json names an end token")
    return HfTokenizer(backend, eos=list(dict.fromkeys(int(end) for end in ends)))


def _json(path: Path) -> dict[str, Any]:
    if not path.is_file():
        raise SpecError(f"no {path.name} in {path.parent}")
    return cast(dict[str, Any], json.loads(path.read_text(encoding="utf-8")))


def _downloaded(name: str) -> Path:
    try:
        from huggingface_hub import snapshot_download
    except ImportError as error:
        raise SpecError(f"{name!r} is no path here, and looking it up needs: pip install huggingface_hub") from error
    logging.getLogger(__name__).info("looking up %s", name)
    try:
        return Path(snapshot_download(name, allow_patterns=["*.json", "*.safetensors"]))
    except Exception as error:  # whatever the hub's client raises: the name cannot be had
        raise SpecError(f"{name!r} is neither a path nor to be had from the hub: {error}") from error
