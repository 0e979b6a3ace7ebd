"""Programs that mean harm, with what must become of them. Used by test_hostile.py.

In a source, MARK is the mark of this test run, PID the test process, SECRETS files outside that are there, FOLDERS
their folders, HOME the home folder and HOME_NAMES what may be seen of it; PORT, PATH_SOCKET and ABSTRACT_SOCKET are
sockets on which someone listens.
"""

from collections.abc import Callable
from dataclasses import dataclass

from burnish.sandbox import Limits, Outcome

QUICK = Limits(seconds=20.0, memory_mb=128, disk_mb=16)
STUCK = Limits(seconds=0.4, memory_mb=128, disk_mb=16)


@dataclass(frozen=True)
class Hostile:
    source: str
    status: tuple[str, ...]
    right: Callable[[Outcome], bool] = lambda outcome: True
    limits: Limits = QUICK
    stdin: str = ""


def stuck(source: str) -> Hostile:
    return Hostile(source, ("timeout",), limits=STUCK)


def harmless(outcome: Outcome) -> bool:
    """It ended by itself and could do nothing of what it tried: it prints what it could."""
    return outcome.exit_code == 0 and outcome.stdout == ""


def failed(outcome: Outcome) -> bool:
    return outcome.exit_code != 0


ATTEMPT = """
import os, sys
def attempt(what, action):
    try:
        result = action()
    except (OSError, ValueError, RuntimeError):
        return
    print(what, result)
"""
CALL = (
    ATTEMPT
    + """
import ctypes
libc = ctypes.CDLL(None, use_errno=True)
def call(name, *arguments):
    result = getattr(libc, name)(*arguments)
    if result != -1:
        print(name, result)
"""
)
ENDED = ("finished",)
SLOW = Limits(seconds=20.0, memory_mb=128)

HOSTILE: dict[str, Hostile] = {
    # using things up
    "fork bomb": Hostile("import os\nwhile True: os.fork()", ("finished", "timeout", "memory"), failed),
    "stubborn fork bomb": stuck("import os\nwhile True:\n    try: os.fork()\n    except OSError: pass"),
    "fork bomb of dying parents": Hostile("""
import os
while True:
    try:
        if os.fork(): os._exit(0)
        os.setsid()
    except OSError: pass
""", ("finished",)),
    "memory in one process": Hostile("x = []\nwhile True: x.append(b'x' * 2**20)", ("memory",), limits=SLOW),
    "memory in one piece": Hostile("x = b'x' * 2**40", ENDED, lambda outcome: "MemoryError" in outcome.stderr),
    "memory spread over children": Hostile("""
import os, time
for _ in range(16): os.fork() or (b'x' * 2**25, time.sleep(999))
time.sleep(999)
""", ("memory",), limits=SLOW),
    "memory shared by children": Hostile(ATTEMPT + """
import mmap
attempt('shared', lambda: mmap.mmap(-1, 4096))
attempt('huge', lambda: mmap.mmap(-1, 2**21, flags=mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS | 0x40000))
attempt('zero', lambda: mmap.mmap(os.open('/dev/zero', os.O_RDWR), 4096))
""", ENDED, harmless),
    "memory in page tables": Hostile("""
import ctypes, time
libc = ctypes.CDLL(None)
libc.mmap.restype = ctypes.c_void_p
libc.mmap.argtypes = [ctypes.c_void_p, ctypes.c_size_t, ctypes.c_int, ctypes.c_int, ctypes.c_int, ctypes.c_long]
for i in range(60000): ctypes.string_at(libc.mmap(2**40 + (i << 30), 4096, 1, 0x22, -1, 0), 1)
time.sleep(999)
""", ("memory",), limits=SLOW),
    "memory in connections that nobody accepts": Hostile("""
import socket, time
with socket.socket(socket.AF_UNIX) as listener:
    listener.bind('s')
    listener.listen(4096)
    for _ in range(4000):
        with socket.socket(socket.AF_UNIX) as one:
            one.setblocking(False)
            one.connect('s')
            one.send(b'x' * 100000)
    time.sleep(999)
""", ("memory",), limits=SLOW),
    "memory in files without names": Hostile(CALL + """
call('memfd_create', b'x', 0)
call('shmget', 0, 2**25, 0o1666)
call('mq_open', b'/x', 0o102)
""", ENDED, harmless),
    "memory in the private folder": Hostile("""
import os
total = 0
try:
    while True:
        with open(f'{total}', 'wb') as f: f.write(b'x' * 2**20)
        total += 1
except OSError: print(total)
""", ENDED, lambda outcome: int(outcome.stdout) < 16),
    "a huge file": Hostile(ATTEMPT + """
f = open('f', 'wb')
attempt('sparse', lambda: f.truncate(2**40))
attempt('dense', lambda: [f.write(b'x' * 2**20) for _ in range(99)])
""", ENDED, harmless),
    "a million files": Hostile("""
try:
    for i in range(10**6): open(f'f{i}', 'w').close()
except OSError: print(i)
""", ("finished", "timeout"), lambda outcome: outcome.status == "timeout" or int(outcome.stdout) < 10000),
    "endless output": Hostile("while True: print('x' * 9999)", ("output",), limits=SLOW),
    "endless errors": Hostile("import sys\nwhile True: sys.stderr.write('x' * 9999)", ("output",), limits=SLOW),
    "output by many": Hostile("""
import os
for _ in range(4): os.fork()
while True: print('x' * 9999)
""", ("output",), limits=SLOW),
    "endless sleep": stuck("import time\ntime.sleep(999)"),
    "memory in sockets and pipes": Hostile(ATTEMPT + """
import ctypes, socket
pair = socket.socketpair()
attempt('larger', lambda: pair[0].setsockopt(socket.SOL_SOCKET, socket.SO_SNDBUF, 2**22))
class Piece(ctypes.Structure): _fields_ = (('base', ctypes.c_char_p), ('length', ctypes.c_size_t))
if ctypes.CDLL(None).vmsplice(os.pipe()[1], ctypes.byref(Piece(b'x' * 4096, 4096)), 1, 0) != -1: print('vmsplice')
attempt('many', lambda: [os.dup(0) for _ in range(64)])
""", ENDED, harmless),
    "memory that takes long to count": Hostile("""
import mmap, os, time
with open('f', 'wb') as f: f.write(b'x' * (12 << 20))
f = open('f', 'r+b')
for _ in range(20):
    if not os.fork():
        maps = [mmap.mmap(f.fileno(), 0) for _ in range(15)]
        for one in maps:
            for i in range(0, len(one), 4096): one[i]
        time.sleep(999)
time.sleep(999)
""", ("timeout",), limits=Limits(seconds=0.4, memory_mb=256, disk_mb=16)),
    "children too short to be seen": stuck("""
import os, signal, time
signal.signal(signal.SIGCHLD, signal.SIG_IGN)
def fork():
    try: return os.fork()
    except OSError: return 1
for _ in range(16):
    if not fork():
        while True: time.sleep(1e-6)
for _ in range(8):
    if not fork():
        while True:
            if not fork():
                end = time.perf_counter() + 0.001
                while time.perf_counter() < end: pass
                os._exit(0)
time.sleep(99)
"""),
    "what a user has only so much of": Hostile(CALL + """
timers = [ctypes.c_void_p() for _ in range(300)]
if not any(libc.timer_create(1, None, ctypes.byref(timer)) for timer in timers): print('timers')
call('inotify_init1', 0)
call('syncfs', 0)
call('syscall', 206 if os.uname().machine == 'x86_64' else 0, 1, ctypes.byref(ctypes.c_void_p()))
""", ENDED, harmless),
    "endless loop": stuck("while True: pass"),
    "endless loop in children": stuck("import os, time\nfor _ in range(3): os.fork()\nwhile True: pass"),
    "endless loop in children nobody waits for": stuck("""
import os, signal, time
signal.signal(signal.SIGCHLD, signal.SIG_IGN)
while True:
    if not os.fork():
        end = time.time() + 0.05
        while time.time() < end: pass
        os._exit(0)
    time.sleep(0.05)
"""),
    "waiting for input that ended": stuck("import sys\nwhile True: sys.stdin.read()"),
    "stopping itself": stuck("import os, signal\nos.kill(os.getpid(), signal.SIGSTOP)"),
    "deep recursion": Hostile("""
import sys
sys.setrecursionlimit(2**31 - 1)
def f(): f()
f()
""", ("finished", "memory", "timeout"), failed),
    "deep recursion in C": Hostile("""
import sys
sys.setrecursionlimit(2**31 - 1)
class A:
    def __repr__(self): return repr(self)
repr(A())
""", ("finished", "memory", "timeout"), failed),
    "many threads": Hostile("""
import threading, time
for _ in range(999): threading.Thread(target=time.sleep, args=(9,)).start()
""", ("finished", "timeout"), failed, limits=STUCK),
    "a huge integer": Hostile("print(len(str(10 ** 10 ** 8)))", ("timeout", "memory", "finished"), failed, STUCK),
    "a regular expression that never ends": stuck("import re\nre.match('(a+)+b', 'a' * 99)"),
    "large input that is not read": Hostile("print('done')", ENDED, lambda o: o.stdout == "done\n", stdin="x" * 2**23),
    # getting out
    "writing outside": Hostile(ATTEMPT + """
libraries = os.path.dirname(os.__file__)
for folder in ('/', '/usr', '/etc', '/dev', '/var/tmp', HOME, sys.prefix, '..', '/tmp/..', libraries, *FOLDERS):
    attempt(folder, lambda: open(os.path.join(folder, MARK), 'w'))
for folder in ('/', '/usr', '/etc', '/dev'): attempt(folder, lambda: os.mkdir(folder + '/' + MARK))
for folder in ('/', '/usr', '/etc/alternatives', libraries):
    if os.path.exists(folder) and not os.statvfs(folder).f_flag & os.ST_RDONLY: print(folder, 'is writable')
attempt('unlink', lambda: os.unlink(sys.executable))
attempt('chmod', lambda: os.chmod('/usr/bin', 0o777))
for name in ('null', 'full', 'urandom'): attempt(name, lambda: os.utime('/dev/' + name))
""", ENDED, harmless),
    "writing to its temporary folders": Hostile("""
import tempfile
for folder in (tempfile.gettempdir(), '/dev/shm', '.'): open(folder + '/' + MARK, 'w')
""", ENDED, harmless),
    "reading what is secret": Hostile(ATTEMPT + """
for path in SECRETS: attempt(path, lambda: open(path).read())
if os.path.exists(HOME): print(*(set(os.listdir(HOME)) - set(HOME_NAMES)), end='')
for name in 'etc/shadow etc/machine-id var/log home run boot mnt media srv sys proc'.split():
    attempt(name, lambda: os.stat('/' + name))
for name, value in os.environ.items():
    if 'SECRET' in name or MARK in value: print(name)
attempt('home', lambda: open(os.path.expanduser('~root/.bashrc')))
""", ENDED, harmless),
    "links to what is secret": Hostile(ATTEMPT + """
around = ['/proc/self/root' + SECRETS[0], '../' * 30 + SECRETS[0][1:]]
for i, path in enumerate(['/etc/shadow', '/proc/1/environ', *SECRETS, *around]):
    os.symlink(path, f'link{i}')
    attempt(path, lambda: open(f'link{i}').read())
attempt('hard link', lambda: os.link('/etc/passwd', 'mine'))
""", ENDED, harmless),
    "tricks with /proc and descriptors": Hostile(ATTEMPT + """
for path in '/proc/self/mem /proc/self/environ /proc/1/root /proc/sys/kernel /sys/kernel /dev/fd/0'.split():
    attempt(path, lambda: os.stat(path))
for name in 'mem kmsg tty console ptmx sda vda'.split(): attempt(name, lambda: os.stat('/dev/' + name))
for number in range(3, 4096): attempt(number, lambda: os.fstat(number))
""", ENDED, harmless),
    "sockets": Hostile(ATTEMPT + """
import socket
attempt('tcp', lambda: socket.create_connection(('127.0.0.1', PORT), 1))
attempt('udp', lambda: socket.socket(type=socket.SOCK_DGRAM).sendto(b'x', ('127.0.0.1', PORT)))
for address in (PATH_SOCKET, ABSTRACT_SOCKET):
    attempt(address, lambda: socket.socket(socket.AF_UNIX).connect(address))
for family in range(2, 50): attempt(family, lambda: socket.socket(family, socket.SOCK_DGRAM))
attempt('name', lambda: socket.getaddrinfo('localhost', 80, flags=socket.AI_NUMERICHOST))
attempt('world', lambda: socket.create_connection(('1.1.1.1', 53), 1))
""", ENDED, harmless),
    "signals to others": Hostile(ATTEMPT + """
attempt('test', lambda: os.kill(PID, 9))
attempt('test group', lambda: os.killpg(PID, 9))
for number in (1, 15, 9, 19): os.kill(os.getppid(), number)
""", ENDED, harmless),
    "signals to all": Hostile("import os, signal\nos.kill(-1, signal.SIGKILL)\nprint('alive')", ENDED),
    "deaf to signals": stuck("""
import signal
for number in range(1, 65):
    try: signal.signal(number, signal.SIG_IGN)
    except (OSError, ValueError): pass
while True: pass
"""),
    "leaving at once": Hostile("import os\nprint('passed')\nos._exit(0)", ENDED, harmless),
    "a daemon": Hostile("""
import os, subprocess, sys
if os.fork(): os._exit(0)
os.setsid()
if os.fork(): os._exit(0)
subprocess.Popen([sys.executable, '-c', 'import time; time.sleep(999)', MARK])
""", ENDED),
    "a daemon that outlives": Hostile("""
import os, subprocess, sys, time
subprocess.Popen([sys.executable, '-c', 'import time; time.sleep(999)', MARK], start_new_session=True)
time.sleep(0.3)
""", ENDED, harmless),
    "closing everything": stuck("import os, time\nos.closerange(0, 99)\nwhile True: time.sleep(1)"),
    "raising limits": Hostile(ATTEMPT + """
import resource
for name in ('AS', 'CPU', 'NPROC', 'FSIZE', 'NOFILE', 'CORE'):
    number = getattr(resource, 'RLIMIT_' + name)
    most = resource.getrlimit(number)[1]
    attempt(name, lambda: resource.setrlimit(number, (most, most + 1)))
attempt('other', lambda: resource.prlimit(1, resource.RLIMIT_CPU, (0, 0)))
attempt('nice', lambda: os.nice(5))
attempt('idle', lambda: os.sched_setscheduler(0, os.SCHED_IDLE, os.sched_param(0)))
attempt('pin', lambda: os.sched_setaffinity(0, [0]))
""", ENDED, harmless),
    "privileged calls": Hostile(CALL + """
call('ptrace', 16, os.getppid(), 0, 0)
call('mount', b'none', b'/sandbox', b'tmpfs', 0, None)
call('umount2', b'/sandbox', 2)
call('unshare', 0x10000000)
call('setns', 0, 0)
call('chroot', b'.')
call('personality', 0x40000)
call('sethostname', b'x', 1)
call('reboot', 0)
call('process_vm_readv', 1, 0, 0, 0, 0, 0)
call('syscall', 425, 1, 0)
call('syscall', 321, 0, 0, 0)
call('syscall', 250, 0, 0)
call('syscall', 434 + 1, 0, 0)
call('syscall', 468, 0, 0)
call('syscall', 56, 0x10000011, 0, 0, 0, 0)
for capability in range(41):
    if libc.prctl(23, capability, 0, 0, 0) == 1: print('capability', capability)
for uid in (0, 65534): attempt(uid, lambda: os.setuid(uid))
attempt('mknod', lambda: os.mknod('device', 0o060666, 0xFE00))
attempt('chown', lambda: os.chown('.', 0, 0))
""", ENDED, harmless),
    "programs with the rights of their owner": Hostile("""
import subprocess
for command in ('su -c id', 'mount -t tmpfs x /sandbox', 'ping -c1 127.0.0.1'):
    print(subprocess.run(command, shell=True, capture_output=True, text=True).stdout, end='')
""", ENDED, harmless),
}  # fmt: skip
