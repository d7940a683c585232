"""The cache equals the server's objects, and handlers hear each change once, whatever happens to the watch."""

from __future__ import annotations

import asyncio
from collections.abc import Callable

from bayplan.api.core import ConfigMap
from bayplan.client.informer import Informer

from .fakes import Server, failure

BASE = "/api/v1/namespaces/default/configmaps"


def config_map(name: str, **data: str) -> dict[str, object]:
    return {"metadata": {"name": name, "namespace": "default"}, "data": data}


async def until(condition: Callable[[], bool]) -> None:
    async with asyncio.timeout(5):
        while not condition():
            await asyncio.sleep(0.005)


class Heard:
    def __init__(self, informer: Informer[ConfigMap]) -> None:
        self.calls: list[str] = []
        informer.add_handlers(
            lambda new: self.calls.append(f"+{name(new)}"),
            lambda old, new: self.calls.append(f"~{name(new)}"),
            lambda old: self.calls.append(f"-{name(old)}"),
        )


def name(obj: ConfigMap) -> str:
    assert obj.metadata is not None
    return obj.metadata.name or ""


def informer_of(server: Server) -> Informer[ConfigMap]:
    return Informer(
        server.client(), ConfigMap, namespace="default", indexes={"data": lambda o: list((o.data or {}).values())}
    )


async def test_list_then_watch() -> None:
    server = Server()
    server.put(f"{BASE}/a", config_map("a", k="1"))
    informer = informer_of(server)
    heard = Heard(informer)
    informer.start()
    await informer.synced()
    assert heard.calls == ["+a"]
    server.put(f"{BASE}/b", config_map("b", k="1"))
    server.put(f"{BASE}/a", config_map("a", k="2"))
    server.drop(f"{BASE}/b")
    await until(lambda: len(heard.calls) == 4)
    assert heard.calls == ["+a", "+b", "~a", "-b"]
    assert [name(o) for o in informer.by_index("data", "2")] == ["a"]
    assert informer.by_index("data", "1") == []
    await informer.stop()


async def test_a_lost_watch_goes_on_where_it_was() -> None:
    server = Server()
    informer = informer_of(server)
    heard = Heard(informer)
    informer.start()
    await informer.synced()
    await until(lambda: bool(server.watches))
    server.cut()
    server.put(f"{BASE}/a", config_map("a"))
    await until(lambda: heard.calls == ["+a"])
    assert server.lists == 1
    await informer.stop()


async def test_after_410_only_differences_are_told() -> None:
    server = Server()
    server.put(f"{BASE}/kept", config_map("kept"))
    server.put(f"{BASE}/gone", config_map("gone"))
    informer = informer_of(server)
    heard = Heard(informer)
    informer.start()
    await informer.synced()
    await until(lambda: bool(server.watches))
    queues, server.watches = server.watches, []
    server.drop(f"{BASE}/gone")
    server.put(f"{BASE}/new", config_map("new"))
    server.watches = queues
    server.cut(forget=True)
    await until(lambda: len(heard.calls) == 4)
    assert heard.calls == ["+kept", "+gone", "-gone", "+new"]
    await informer.stop()


async def test_bookmarks_move_the_version() -> None:
    server = Server()
    informer = informer_of(server)
    informer.start()
    await informer.synced()
    await until(lambda: bool(server.watches))
    server.bookmark()
    await until(lambda: informer.resource_version == str(server.version))
    assert len(informer) == 0
    await informer.stop()


async def test_a_kind_that_is_not_served_is_empty_and_synced() -> None:
    server = Server()
    server.failures = [failure(404, "NotFound", "the server could not find the requested resource")]
    informer = informer_of(server)
    informer.start()
    await informer.synced()
    assert not informer.available
    await informer.stop()


async def test_the_list_is_tried_again_after_an_error() -> None:
    server = Server()
    server.failures = [failure(503, "ServiceUnavailable")]
    informer = informer_of(server)
    informer.start()
    await asyncio.wait_for(informer.synced(), 5)
    assert server.lists == 1
    await informer.stop()


async def test_one_broken_handler_does_not_stop_the_others() -> None:
    server = Server()
    informer = informer_of(server)

    def broken(obj: ConfigMap) -> None:
        raise RuntimeError("defect")

    informer.add_handlers(broken)
    heard = Heard(informer)
    informer.start()
    await informer.synced()
    server.put(f"{BASE}/a", config_map("a"))
    await until(lambda: heard.calls == ["+a"])
    await informer.stop()
