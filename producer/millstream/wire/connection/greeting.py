"""Probes whether a server speaks TLS, after a failed connection, for a better error message."""

from __future__ import annotations

import asyncio
import contextlib
import ssl

ASK_S = 1.0


async def speaks_plainly(host: str, port: int) -> bool:
    """True if the server replies to a command without TLS, even with a refusal."""
    return await _first_byte(host, port, None) in (b"+", b"-")


async def speaks_tls(host: str, port: int) -> bool:
    """True if the server accepts a TLS connection. Nothing is sent over it, so its certificate does not
    matter.
    """
    anybody = ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)  # no certificate store is read from disk
    anybody.check_hostname = False
    anybody.verify_mode = ssl.CERT_NONE
    return await _first_byte(host, port, anybody) is not None


async def _first_byte(host: str, port: int, tls: ssl.SSLContext | None) -> bytes | None:
    """Returns the first byte of the reply to a PING; empty if a TLS connection was made. None: no connection,
    or no reply.
    """
    try:
        async with asyncio.timeout(ASK_S):
            reader, writer = await asyncio.open_connection(host, port, ssl=tls)
            try:
                if tls is not None:
                    return b""
                writer.write(b"PING\r\n")
                return await reader.read(1)
            finally:
                writer.close()
                with contextlib.suppress(OSError):
                    await writer.wait_closed()
    except (OSError, TimeoutError):
        return None
