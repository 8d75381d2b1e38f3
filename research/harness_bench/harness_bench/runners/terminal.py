"""Runs a command at a terminal and answers its questions: STATE OPEN_QUESTION QUESTION CONSENT COMMAND..."""

import fcntl
import os
import pty
import struct
import subprocess
import sys
import termios

from harness_bench.runners.person import Person

state, open_question, question, consent, *command = sys.argv[1:]
person = Person(state, int(open_question))
master, terminal = pty.openpty()
fcntl.ioctl(terminal, termios.TIOCSWINSZ, struct.pack("HHHH", 50, 200, 0, 0))
program = subprocess.Popen(command, stdin=terminal, stdout=terminal, stderr=terminal)
os.close(terminal)
shown = b""
while True:
    try:
        piece = os.read(master, 4096)
    except OSError:  # the other end is closed
        break
    sys.stdout.buffer.write(piece)
    sys.stdout.flush()
    shown += piece
    while question.encode() in shown:
        shown = shown.partition(question.encode())[2]
        person.consent()
        os.write(master, f"{consent}\r".encode())
sys.exit(program.wait())
