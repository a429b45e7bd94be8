"""Sends numbered messages by logging.handlers.SysLogHandler, then waits to be killed with its socket open.

Arguments: tcp, udp, stream or datagram; the port or the socket's path; how many; the text of message 0.
"""

import logging
import logging.handlers
import socket
import sys
import time

way, address, count, text = sys.argv[1], sys.argv[2], int(sys.argv[3]), sys.argv[4]
handler = logging.handlers.SysLogHandler(
    address=("127.0.0.1", int(address)) if way in ("tcp", "udp") else address,
    facility=logging.handlers.SysLogHandler.LOG_DAEMON,
    socktype=socket.SOCK_STREAM if way in ("tcp", "stream") else socket.SOCK_DGRAM,
)
handler.setFormatter(logging.Formatter("app[77]: %(message)s"))
logger = logging.getLogger("client")
logger.addHandler(handler)
logger.setLevel(logging.DEBUG)
levels = [logging.DEBUG, logging.INFO, logging.WARNING, logging.ERROR, logging.CRITICAL]
for n in range(count):
    logger.log(levels[n % 5], text.replace("message 0 ", f"message {n} "))
    if way in ("udp", "datagram"):
        time.sleep(0.0005)
time.sleep(600)
