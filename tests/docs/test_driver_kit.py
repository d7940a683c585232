"""The driver of docs/driver-kit.md runs as it is written."""

from __future__ import annotations

import asyncio
import re
import tempfile
from pathlib import Path
from typing import Any

from bayplan.api.core import Node
from bayplan.api.resource import ResourceSlice
from tests.cluster import api, eventually, make

PAGE = Path(__file__).resolve().parents[2] / "docs" / "driver-kit.md"


async def test_the_driver_of_the_page_publishes_its_devices() -> None:
    (code,) = re.findall(r"```python\n(.*?)```", PAGE.read_text(encoding="utf-8"), re.DOTALL)
    names: dict[str, Any] = {"__name__": "page"}
    exec(compile(code, str(PAGE), "exec"), names)
    with tempfile.TemporaryDirectory(prefix="bp-") as folder:
        async with api() as client:
            await client.create(make(Node, "worker", None))
            task = asyncio.create_task(names["main"](client, "worker", Path(folder)))

            async def published() -> list[ResourceSlice]:
                assert not task.done(), task
                return (await client.list(ResourceSlice))[0]

            (one,) = await eventually(published)
            assert one.spec is not None
            assert [device.name for device in one.spec.devices or ()] == ["card-0", "card-1"]
            task.cancel()
            await asyncio.gather(task, return_exceptions=True)
