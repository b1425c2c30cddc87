"""A relay before a real server that changes one thing it says. What cuts and delays is `TcpProxy`."""

import contextlib
import socket
import threading
from collections.abc import Generator


@contextlib.contextmanager
def relay(port: int, old: bytes, new: bytes) -> Generator[int]:
    """Forward to a local port; what comes back has `old` replaced by `new`, which is as long."""
    assert len(old) == len(new)
    listener = socket.create_server(("127.0.0.1", 0))
    open_sockets: list[socket.socket] = []
    threads: list[threading.Thread] = []

    def coordinator_thread(source: socket.socket, target: socket.socket) -> None:
        with contextlib.suppress(OSError):
            while data := source.recv(1 << 20):
                target.sendall(data.replace(old, new))
        for end in (source, target):
            with contextlib.suppress(OSError):
                end.shutdown(socket.SHUT_RDWR)

    def accept() -> None:
        with contextlib.suppress(OSError):
            while True:
                client, _ = listener.accept()
                server = socket.create_connection(("127.0.0.1", port))
                open_sockets.extend((client, server))
                for pair in ((client, server), (server, client)):
                    threads.append(threading.Thread(target=coordinator_thread, args=pair))
                    threads[-1].start()

    acceptor = threading.Thread(target=accept)
    acceptor.start()
    try:
        yield int(listener.getsockname()[1])
    finally:
        with contextlib.suppress(OSError):
            listener.shutdown(socket.SHUT_RDWR)
        listener.close()
        acceptor.join()
        for one in open_sockets:
            with contextlib.suppress(OSError):
                one.shutdown(socket.SHUT_RDWR)
        for thread in threads:
            thread.join()
        for one in open_sockets:
            one.close()
