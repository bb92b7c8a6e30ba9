"""Chooses the backend that samples."""

from __future__ import annotations

from millstream_worker.engine.runner.device.transfer import settle
from millstream_worker.engine.runner.gpu.sampling.triton_chooser import TritonChooser
from millstream_worker.engine.runner.gpu.sampling.triton_draws import TritonDraws
from millstream_worker.engine.runner.model.load import LoadedModel
from millstream_worker.engine.runner.sampling.chooser import Chooser
from millstream_worker.engine.runner.sampling.native_chooser import NativeChooser
from millstream_worker.engine.runner.sampling.numpy_chooser import NumpyChooser
from millstream_worker.engine.runner.sampling.torch_chooser import TorchChooser
from millstream_worker.engine.runner.self_check.findings import Findings, short


def choose_sampling(loaded: LoadedModel, findings: Findings) -> Chooser:
    """Returns Triton's kernels where those of attention have passed their check and these can be launched,
    the library where there is one, else what torch or numpy has."""
    if loaded.attention == "triton":
        return _triton(loaded, findings) or TorchChooser()
    if loaded.device.type != "cpu":
        return TorchChooser()
    return NativeChooser(loaded.library) if loaded.library else NumpyChooser()


def _triton(loaded: LoadedModel, findings: Findings) -> TritonChooser | None:
    try:
        draws = TritonDraws(loaded.vocab_size)
        draws.try_out(loaded.dtype, loaded.device)
        settle(loaded.device)
    except Exception as error:  # noqa: BLE001 - of a compiler, a driver, or a vocabulary that is too large
        findings.fall_back(f"sampling: plain PyTorch, slower than one kernel: {short(error)}")
        return None
    return TritonChooser(draws)
