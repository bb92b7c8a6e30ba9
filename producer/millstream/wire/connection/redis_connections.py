"""Corrected classes of redis-py: `reliable` for all connections, `followed` for those to a master that
Sentinels name; `ClosingPool`. A failed connection is followed by a probe whether the server
speaks TLS, for a better error message.
"""

from __future__ import annotations

import asyncio
import builtins
import contextlib
import ssl
from typing import Any

from redis.asyncio import BlockingConnectionPool
from redis.asyncio.connection import AbstractConnection, Connection, SSLConnection
from redis.asyncio.sentinel import MasterNotFoundError
from redis.exceptions import ConnectionError, NoPermissionError, ReadOnlyError, RedisError, TimeoutError

from millstream.wire.connection.nodes import Sentinels

PLAIN, WITH_TLS = "redis:// (redis+…://)", "rediss:// (rediss+…://)"
_OTHER_NAME = {62, 64}  # X509_V_ERR_HOSTNAME_MISMATCH, X509_V_ERR_IP_ADDRESS_MISMATCH, of OpenSSL
ASK_S = 1.0


class NoTLS(RedisError):
    """The server speaks no TLS; not retried."""


class ClosingPool(BlockingConnectionPool):
    """Closed, it connects no more: redis-py would repeat the commands that were under way on connections that
    nobody ends.
    """

    _closed = False

    def make_connection(self) -> AbstractConnection:
        connection: AbstractConnection = super().make_connection()  # type: ignore[no-untyped-call]
        connection.register_connect_callback(self._end_if_closed)  # type: ignore[no-untyped-call]
        return connection

    async def aclose(self) -> None:
        self._closed = True
        try:
            await super().aclose()
        except asyncio.CancelledError:  # it came before some were ended
            await self.disconnect()
            raise

    async def _end_if_closed(self, connection: AbstractConnection) -> None:
        if self._closed:
            await connection.disconnect(nowait=True)
            raise ConnectionError("this client is closed")


def reliable(kind: type[AbstractConnection]) -> type[AbstractConnection]:
    """Sends without `asyncio.wait_for`: in Python 3.11 it may swallow the task's cancellation, and the task
    then waits for ever. Leaves a server that has become a replica: the next connection finds the master.
    """

    base: Any = kind

    class Reliable(base):  # type: ignore[misc]
        socket_timeout: float | None

        async def _connect(self) -> None:
            try:
                await super()._connect()
            except builtins.TimeoutError as error:
                if isinstance(self, SSLConnection) and await speaks_plainly(self.host, self.port):
                    raise NoTLS(f"{self._host_error()} does not speak TLS; use {PLAIN}") from error
                raise
            except ssl.SSLCertVerificationError as error:
                remedy = _trust_remedy(error, getattr(self, "ca_certs", None))
                raise ssl.SSLCertVerificationError(error.errno, f"{error.strerror}; {remedy}") from error

        async def connect_check_health(self, *args: Any, **options: Any) -> None:
            try:
                await super().connect_check_health(*args, **options)
            except ConnectionError as error:  # redis-py would convert and retry it
                if isinstance(error.__cause__, NoTLS):
                    raise error.__cause__ from None
                raise
            except asyncio.CancelledError:  # in the handshake: a closed pool would not end it
                await self.disconnect(nowait=True)
                raise

        async def disconnect(self, *args: Any, **options: Any) -> None:
            with contextlib.suppress(TimeoutError):  # it is closed; a busy loop learns of that late
                await super().disconnect(*args, **options)

        async def send_packed_command(self, command: Any, check_health: bool = True) -> None:
            if not self.is_connected:
                await self.connect_check_health(check_health=False)
            limit_s, self.socket_timeout = self.socket_timeout, None
            try:
                async with asyncio.timeout(limit_s):
                    await super().send_packed_command(command, check_health)
            except builtins.TimeoutError:
                await self.disconnect(nowait=True)
                raise TimeoutError("Timeout writing to socket") from None
            finally:
                self.socket_timeout = limit_s

        async def read_response(self, *args: Any, **options: Any) -> Any:
            try:
                return await super().read_response(*args, **options)
            except ReadOnlyError as error:
                await self.disconnect(nowait=True)
                raise ConnectionError(f"{self._host_error()} is a replica now: {error}") from error

        async def on_connect_check_health(self, check_health: bool = True) -> None:
            try:
                await super().on_connect_check_health(check_health)
            except ConnectionError as error:
                if type(error) is ConnectionError and (better := await _about_tls(self, error)):
                    raise ConnectionError(better) from error
                raise

    made: type[AbstractConnection] = Reliable
    return made


def followed(kind: type[AbstractConnection], sentinels: Sentinels) -> type[AbstractConnection]:
    """Connects to the current master, and checks that it is one: a Sentinel that was cut off may still name
    the old one, which serves outdated reads.
    """

    base: Any = kind

    class Followed(base):  # type: ignore[misc]
        async def _connect(self) -> None:
            node = await sentinels.master()
            self.host, self.port = node.host, node.port
            await super()._connect()

        async def on_connect_check_health(self, check_health: bool = True) -> None:
            await super().on_connect_check_health(check_health)
            await self.send_command("ROLE", check_health=False)
            try:
                [role, *_] = await self.read_response()
            except NoPermissionError:  # this user may not ask; the Sentinels have to be trusted
                return
            if role not in (b"master", "master"):
                raise MasterNotFoundError(f"{self._host_error()} is no master, though a Sentinel says so")

    made: type[AbstractConnection] = Followed
    return made


async def _about_tls(connection: AbstractConnection, error: ConnectionError) -> str | None:
    """A message for a failed connection whose cause is TLS, or its absence; None for another cause."""
    if isinstance(connection, SSLConnection):
        return f"{error}; {_tls_remedy(connection)}"
    if isinstance(connection, Connection) and await speaks_tls(connection.host, connection.port):
        return f"{connection._host_error()} speaks TLS; use {WITH_TLS}"
    return None


def _trust_remedy(error: ssl.SSLCertVerificationError, ca_certs: str | None) -> str:
    """The hint for a server whose certificate this client refuses."""
    if error.verify_code in _OTHER_NAME:
        return "give the host by a name that stands in its certificate"
    if ca_certs is None:
        return "where its authority is your own, give ssl_ca_certs, the file of its certificate, in the URL"
    return f"perhaps another authority than that of {ca_certs} has signed its certificate"


def _tls_remedy(connection: SSLConnection) -> str:
    """The hint for a connection that ends after the handshake: the server refuses a certificate, or the lack
    of one.
    """
    if connection.certfile:
        return f"perhaps the server does not trust who signed {connection.certfile}"
    return "where it takes only clients with a certificate, give ssl_certfile and ssl_keyfile in the URL"


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
