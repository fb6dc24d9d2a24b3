"""`--batch-tokens`: the number of tokens in each batch of a run."""

from concurrent.futures import Future, ThreadPoolExecutor

from jax.errors import JaxRuntimeError

from jaxscore.engine import AUTO, BATCH_TOKENS
from jaxscore.engine.devices import free_bytes, placed_bytes
from jaxscore.io import processes
from jaxscore.models.model import Model

LENGTH = 1024  # length of the measured rows: attention makes tokens of longer rows more expensive
LEAST, MOST_CPU, MOST_ACCELERATOR = 512, 4096, 32768  # bounds; not measured on accelerators
SHARE = 0.8  # share of the memory that the parameters leave; the rest is for batches in flight


class BatchTokens:
    """Number of tokens in each batch of a run.

    On an accelerator it is derived from compiled programs, which compile while the weights load.
    """

    def __init__(
        self,
        requested: int | str | None,
        *,
        reproducible: bool,
        measures: tuple[str, ...] = (),
    ) -> None:
        """Store the settings; nothing is measured yet.

        Args:
            requested: a number, "auto", or None: BATCH_TOKENS on a CPU and "auto" on an
                accelerator, where small batches are limited by reading the weights.
            reproducible: if True, batches hold one sequence each and the number is not used.
            measures: names of `ModelFunctions.measures` that every batch computes.
        """
        self._requested, self._reproducible, self._measures = requested, reproducible, measures
        self._measured: Future[int] | None = None

    def measure(self, model: Model) -> None:
        """Start to compile for a model with shapes as parameters, if memory decides the number."""
        if self._by_memory(model):
            pool = ThreadPoolExecutor(1, thread_name_prefix="compile")
            free = free_bytes() - placed_bytes(model.params)
            self._measured = pool.submit(_max_tokens, model, free, self._measures)
            pool.shutdown(wait=False)

    def choose(self, model: Model) -> int:
        """Return the number of tokens for the loaded model.

        Raises:
            InputError: see `auto_batch_tokens`.
        """
        if self._measured is not None:
            return _agreed_tokens(self._measured.result())
        if self._requested is not None and self._requested != AUTO:
            return int(self._requested)
        by_memory = self._by_memory(model)
        return auto_batch_tokens(model, measures=self._measures) if by_memory else BATCH_TOKENS

    def _by_memory(self, model: Model) -> bool:
        """Return True if memory determines the number of tokens."""
        on_accelerator = model.devices.platform != "cpu"
        is_auto = self._requested == AUTO or (self._requested is None and on_accelerator)
        return is_auto and not self._reproducible


def auto_batch_tokens(model: Model, free: int | None = None, measures: tuple[str, ...] = ()) -> int:
    """Find the largest power of two whose batches fit, by the compiler's memory analysis.

    The compiled programs are those that score such batches, so a run finds the last one in JAX's
    cache.

    Args:
        model: the loaded model, whose memory is already in use.
        free: bytes of the device that batches may use, or None to ask the device.
        measures: see `BatchTokens`.

    Raises:
        InputError: the compiler of this device does not report memory.
    """
    return _agreed_tokens(_max_tokens(model, free_bytes() if free is None else free, measures))


def _agreed_tokens(tokens: int) -> int:
    """Return the first process's number: with different numbers, plans would differ."""
    return int.from_bytes(processes.broadcast_from_first(tokens.to_bytes(8, "little")), "little")


def _max_tokens(model: Model, free: int, measures: tuple[str, ...]) -> int:
    available = SHARE * free
    tokens = MOST_CPU if model.devices.platform == "cpu" else MOST_ACCELERATOR
    while tokens > LEAST:
        needed = _working_bytes(model, tokens, measures)
        if needed <= available:
            break
        # Memory grows at most in proportion to tokens, so batches larger than this do not fit.
        fitting = int(tokens * available / needed)
        tokens = max(LEAST, min(tokens // 2, 1 << (fitting.bit_length() - 1) if fitting > 0 else 0))
    return tokens


def _working_bytes(model: Model, tokens: int, measures: tuple[str, ...]) -> int:
    """Measure a batch's memory in bytes, without parameters, even if it does not fit."""
    from jaxscore.engine import footprint  # deferred: a fixed batch size needs no estimate

    length = min(LENGTH, tokens, 1 << (model.max_positions - 1).bit_length())
    rows = tokens // length
    try:
        return footprint.measure(model, rows, length, measures=measures).working_bytes
    except JaxRuntimeError as error:
        if (rejected := footprint.refused(error, rows, length)) is None:
            raise
        return rejected.total_bytes - placed_bytes(model.params)
