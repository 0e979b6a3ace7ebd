"""The files that weights travel by, from the trainer to a hosted engine's processes, and stay in until the next ones.

A `WeightFolder` is in shared memory where there is enough, with a safetensors file for each bucket. Its name says how
much it will hold, so that engines which start together do not count on the same room, and it is locked, so that one
whose owner died is found.

A `Proof` shows that a program computes what a module does: the log-probs of a fixed sequence, up to rounding. Whoever
has the module computes them (`workers/replica.py`, `proof_by`) and hands them to the engine before the weights. In
bfloat16 rounding alone was 0.20 with Qwen2.5-Coder-1.5B, where tokens are 3.2 apart (their standard deviation), and
0.084 with SmolLM2-135M, where they are 4.7 apart.
"""

import fcntl
import logging
import os
import re
import shutil
import tempfile
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager, suppress
from dataclasses import dataclass
from pathlib import Path

import torch
from safetensors import SafetensorError, safe_open
from safetensors.torch import save_file
from torch import Tensor, nn

from burnish.errors import RolloutError
from burnish.rollout.admission import check_fit
from burnish.rollout.base import POLICY_IS_BROKEN

SHARED_MEMORY = Path("/dev/shm")
MIB = 2**20
SPARE = 256 * MIB  # of shared memory that is left to the program, whose workers talk through it
CLAIM = re.compile(r"burnish-weights-(\d+)-")  # the name of a folder, with the bytes that it will hold
WORDS = 2**17  # of 8 bytes that are added up at a time, which caches hold
FACTOR = 0x2545F4914F6CDD1D  # odd, so that every place has its own factor
FACTORS = torch.arange(1, 2 * WORDS, 2, device="cpu") * FACTOR  # odd too, so that no bit is lost
TOKENS = 16
# Mean difference of log-probs that is rounding: this, or this share of their standard deviation if that is more.
ROUNDING = {torch.float32: (1e-3, 1e-4), torch.bfloat16: (0.08, 0.25), torch.float16: (0.03, 0.05)}

log = logging.getLogger(__name__)


def digest(tensor: Tensor) -> str:
    """A fingerprint of the bits of a tensor in the memory of a CPU: sums of its words, each times a factor by place,
    modulo 2**64; and, as high bits have little weight there, of the upper halves alone."""
    bits = tensor.contiguous().flatten().view(torch.uint8)
    count = min(WORDS, -(-len(bits) // 8))
    words = torch.empty(count, dtype=torch.int64, device="cpu")  # for a part of the bits, which may lie anywhere
    filled, factors = words.view(torch.uint8), FACTORS[:count]
    whole = halves = len(bits)
    for part in bits.split(8 * WORDS):
        filled[: len(part)] = part
        filled[len(part) :] = 0
        whole = (whole * FACTOR + int(words.dot(factors))) % 2**64
        halves = (halves * FACTOR + int(words.bitwise_right_shift_(32).dot(factors))) % 2**64
    return f"{whole:016x}{halves:016x}"


def read_weights(files: Iterable[str | Path], digests: dict[str, str]) -> Iterator[tuple[str, Tensor]]:
    """The named tensors of all files, one after the other; `digests` gets those of what was read."""
    for file in files:
        with safe_open(file, framework="pt") as opened:
            for name in opened.keys():  # noqa: SIM118 (it is no dictionary)
                tensor = opened.get_tensor(name)
                digests[name] = digest(tensor)
                yield name, tensor


@dataclass(frozen=True)
class Proof:
    """The log-probs of `token_ids` after the first, by whoever trains the weights of this version. Those that are
    generated with differ by `rounding` at most, on average."""

    version: int
    token_ids: list[int]
    log_probs: list[float]
    rounding: float

    def check(self, found: Sequence[float], who: str) -> None:
        apart = [abs(a - b) for a, b in zip(found, self.log_probs, strict=True)]
        difference = sum(apart) / len(apart)
        if not difference <= self.rounding:  # nor where it is no number
            raise RolloutError(
                f"{who} does not compute what the actor does with version {self.version} of its weights: log-probs of "
                f"a fixed sequence differ by {difference:.2g}, {self.rounding:.2g} is rounding. Use rollout.name=native"
            )


def rounding(log_probs: Tensor, *dtypes: torch.dtype) -> float:
    """By how much those of a program may differ from these, on average, where they are computed in these types."""
    spread = float(log_probs.std(correction=0))
    return max(max(least, share * spread) for least, share in (ROUNDING[dtype] for dtype in dtypes))


def proof(version: int, token_ids: list[int], log_probs: Tensor, *dtypes: torch.dtype) -> Proof:
    """Of log-probs that whoever trains the weights has computed. RolloutError where they are no numbers."""
    if not bool(log_probs.isfinite().all()):
        raise RolloutError(POLICY_IS_BROKEN)
    return Proof(version, token_ids, log_probs.tolist(), rounding(log_probs, *dtypes))


def length(context: int | None) -> int:
    """Of the sequence: after it there is room for one more token in the context."""
    return min(TOKENS, (context or TOKENS + 1) - 1)


def sequence(vocabulary: int, count: int) -> list[int]:
    """Token ids from all parts of the vocabulary."""
    return [(i * 7919) % vocabulary for i in range(1, count + 1)]


@torch.no_grad()
def proof_by(module: nn.Module, version: int, context: int, dtype: torch.dtype) -> Proof:
    """By a module with its weights as they are, for a program that computes in `dtype`."""
    parameter = next(module.parameters())
    vocabulary = int(module.get_input_embeddings().num_embeddings)  # type: ignore[operator]
    ids = torch.tensor(sequence(vocabulary, length(context)), device=parameter.device)  # (n,)
    logits = module(input_ids=ids[None], use_cache=False).logits[0, :-1]  # (n - 1, V)
    log_probs = logits.float().log_softmax(-1).gather(-1, ids[1:, None])[:, 0]
    return proof(version, ids.tolist(), log_probs, parameter.dtype, dtype)


class WeightFolder:
    """Weights for a model like `module`, in `dtype`; which names there are and how they are shaped comes from it."""

    def __init__(self, module: nn.Module, dtype: torch.dtype, place: Path | None = None):
        self.dtype = dtype
        self.version: int | None = None  # of the files, once they are all there
        self.files: list[Path] = []
        self.digests: dict[str, str] = {}
        self.proof: Proof | None = None  # of this version or the next one
        self._model = type(module).__name__
        self._shapes = {name: tuple(tensor.shape) for name, tensor in module.state_dict(keep_vars=True).items()}
        parameters = dict(module.named_parameters(remove_duplicate=False))
        self._groups: dict[int, list[str]] = {}  # names of each parameter; tied ones have several
        for name, parameter in parameters.items():
            self._groups.setdefault(id(parameter), []).append(name)
        self.bytes = sum(parameters[names[0]].numel() for names in self._groups.values()) * dtype.itemsize
        self._held = ExitStack()
        self.path = _folder(self.bytes, self._held) if place is None else _claimed(place, self.bytes, self._held)

    def write(self, buckets: Iterable[Mapping[str, Tensor]], version: int) -> None:
        """Replace the files by those of new weights. Where it fails on the way, there are no weights."""
        self.version, self.digests = None, {}
        for file in self.files:
            file.unlink(missing_ok=True)
        self.files = []
        for bucket in buckets:
            self._write_file(bucket)
            del bucket  # before the next one is made
        absent = [names for names in self._groups.values() if not any(name in self.digests for name in names)]
        if absent:
            raise RolloutError(
                f"{len(absent)} of {len(self._groups)} weights of {self._model} were not published, such as "
                f"{absent[0][0]}: publish all of them"
            )
        self.version = version

    def compare(self, read: Mapping[str, str], who: str) -> None:
        wrong = [name for name, value in self.digests.items() if read.get(name) != value]
        if wrong:
            raise RolloutError(
                f"{len(wrong)} of {len(self.digests)} weights of version {self.version} did not arrive in {who}, such "
                f"as {wrong[0]}: it would generate with another model than the one that is trained"
            )

    def close(self) -> None:
        self.version = None
        self._held.close()

    def _write_file(self, bucket: Mapping[str, Tensor]) -> None:
        check_fit(bucket, self._shapes, self._model, "model")
        kept = {}
        for name, tensor in bucket.items():
            # In the engine's type, on the CPU. Tied names in one bucket must not share memory in the file.
            here = tensor.detach().to("cpu", self.dtype if tensor.is_floating_point() else tensor.dtype).contiguous()
            kept[name] = here.clone() if here.data_ptr() == tensor.data_ptr() else here
        _check_room(self.path.parent, sum(tensor.nbytes for tensor in kept.values()))
        file = self.path / f"{len(self.files):05d}.safetensors"
        self.files.append(file)
        try:
            save_file(kept, file)
        except (OSError, SafetensorError) as error:  # others may have taken the room
            raise RolloutError(f"weights for the rollout engine could not be written to {file}: {error}") from error
        self.digests |= {name: digest(tensor) for name, tensor in kept.items()}


def _folder(needed: int, held: ExitStack) -> Path:
    """In shared memory, or in the temporary folder where there is too little of it."""
    temporary = Path(tempfile.gettempdir())
    if SHARED_MEMORY.is_dir():
        try:
            return _claimed(SHARED_MEMORY, needed, held)
        except RolloutError as error:
            log.warning("weights go to the rollout engine through %s: slower, if that is a disk. %s", temporary, error)
    return _claimed(temporary, needed, held)


def _claimed(place: Path, needed: int, held: ExitStack) -> Path:
    """A new folder for so many bytes, which others do not count on as long as it is held."""
    with _locked(place):
        _check_room(place, needed, _claims(place))
        name = f"burnish-weights-{needed + SPARE * (place == SHARED_MEMORY)}-"
        folder = Path(held.enter_context(tempfile.TemporaryDirectory(prefix=name, dir=place)))
        held.enter_context(_locked(folder))
        return folder


@contextmanager
def _locked(folder: Path) -> Iterator[None]:
    """One process after the other, until it leaves or ends."""
    opened = os.open(folder, os.O_RDONLY)
    try:
        with suppress(OSError):  # a file system that knows no locks
            fcntl.flock(opened, fcntl.LOCK_EX)
        yield
    finally:
        os.close(opened)


def _is_left(folder: Path) -> bool:
    """Whether the process that had locked it has ended."""
    opened = os.open(folder, os.O_RDONLY)
    try:
        fcntl.flock(opened, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except OSError:  # it is there, or the file system knows no locks
        return False
    finally:
        os.close(opened)
    return True


def _claims(place: Path) -> int:
    """Bytes that folders in this place will hold and do not hold yet. Removes those that were left behind."""
    total = 0
    for folder in place.iterdir():
        if (claim := CLAIM.match(folder.name)) is None:
            continue
        with suppress(OSError):  # it is being removed; or is another user's, whose claim counts on top of what it holds
            if _is_left(folder):
                shutil.rmtree(folder)
            else:
                total += max(0, int(claim[1]) - sum(file.stat().st_size for file in folder.iterdir()))
    return total


def _check_room(place: Path, needed: int, claimed: int = 0) -> None:
    free, spare = shutil.disk_usage(place).free - claimed, SPARE * (place == SHARED_MEMORY)
    if free < needed + spare:
        more = f", with {spare / MIB:,.0f} to spare," if spare else ""
        raise RolloutError(
            f"{needed / MIB:,.0f} MiB of weights for the rollout engine{more} do not fit in {place}, which has "
            f"{max(0, free) / MIB:,.0f} MiB free and unclaimed. Make room there; a container gets more of "
            "/dev/shm by `docker run --shm-size`"
        )
