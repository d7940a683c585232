"""The driver kit (public): write a DRA driver by describing devices and saying how one is prepared.

A driver implements :class:`DevicePreparer`; :class:`Driver` does the rest: it registers with the node agent (or a kubelet),
publishes ResourceSlices and keeps them as they should be, answers NodePrepareResources and NodeUnprepareResources, writes
CDI documents, and keeps all of it right over restarts and reboots.

    async with Driver(name="gpu.example.com", node_name="n1", client=client, preparer=MyPreparer()) as driver:
        await driver.publish({"n1": Pool(devices=[...])})
        await driver.run()

``python -m bayplan.driver.example`` is a complete driver on top of it.
"""

from bayplan.driver.kit import Driver, DriverPaths
from bayplan.driver.plugin import AllocatedDevice, ClaimReference, DevicePreparer, PreparationError, PreparedDevice
from bayplan.driver.slices import Pool

__all__ = [
    "AllocatedDevice",
    "ClaimReference",
    "DevicePreparer",
    "Driver",
    "DriverPaths",
    "Pool",
    "PreparationError",
    "PreparedDevice",
]
