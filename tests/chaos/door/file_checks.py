"""What must be true of uploaded files, in the list of files and in the store."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from typing import TYPE_CHECKING, Any

from chaos.door.door import Door
from chaos.door.upload import Upload
from millstream.gateway.files.store.file_catalogue import FileCatalogue
from millstream.gateway.files.store.file_record import FOLDER
from millstream.gateway.files.store.object_store import ObjectStore
from millstream.gateway.files.store.orphans import Orphans
from millstream.gateway.files.store.store_marker import StoreMarker
from millstream.gateway.redis.gateway_redis import GatewayRedis

if TYPE_CHECKING:
    from chaos.arena import Arena

MOST = 1_000_000


def file_faults(upload: Upload, listed: Sequence[Mapping[str, Any]]) -> Iterator[str]:
    """`listed`: files of its name."""
    there = {one["id"] for one in listed}
    if not upload.ids:
        yield "it was never acknowledged"
    if lost := set(upload.ids) - upload.deleted - there:
        yield f"acknowledged as {sorted(lost)}, and not listed"
    if upload.deleted & there:
        yield "deleted, and still listed"
    if upload.key is not None and len(there | set(upload.ids)) > 1:
        yield f"one Idempotency-Key, and {len(there | set(upload.ids))} files"
    if len(there | upload.deleted) > upload.sent:
        yield f"{len(there | upload.deleted)} files, and its end was sent {upload.sent} times"
    for one in listed:
        if one["bytes"] != upload.size:
            yield f"a part is listed: {one['bytes']} bytes of {upload.size}"


async def swept(arena: Arena, door: Door) -> int:
    """How many objects a sweep deletes once no gateway is there; then each object has its file and each file
    its object."""
    access = GatewayRedis(arena.server.url)
    store, files = ObjectStore(str(arena.files)), FileCatalogue(access)
    try:
        count = await Orphans(access, store, files, StoreMarker(access, store)).sweep(age_s=0.0)
        page = await files.page("", limit=MOST)
    finally:
        await access.aclose()
    assert page is not None
    wanted = {record.path for record in page.records}
    found = {
        str(path.relative_to(arena.files)) for path in (arena.files / FOLDER).rglob("*") if path.is_file()
    }
    if extra := found - wanted:
        door.note(f"{len(extra)} objects without a file outlast the sweep: {sorted(extra)[:2]}", "orphan")
    if missing := wanted - found:
        door.note(f"{len(missing)} files have no object after the sweep: {sorted(missing)[:2]}", "orphan")
    return count
