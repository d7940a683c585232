"""Starting the device manager: what the state file says of plugin devices."""

from __future__ import annotations

from bayplan.managers.assignment import StartupError
from bayplan.managers.checkpoint_devices import DEVICE_STATE_FILE, read_devices
from bayplan.managers.checksum import CheckpointError
from bayplan.managers.device import DeviceManager


def restore_devices(device: DeviceManager, text: str | None, root: str) -> None:
    """Takes the file over. Raises StartupError at stage ``deviceManagerStart`` for one that cannot be read."""
    if text is None:
        return
    path = f"{root}/device-plugins/{DEVICE_STATE_FILE}"
    try:
        device.restore(read_devices(text))
    except CheckpointError as error:
        raise StartupError(
            "deviceManagerStart",
            f"could not restore plugin devices from checkpoint {path}: {error}",
            f"drain the node, stop the agent, delete {path}, start it again",
        ) from None
