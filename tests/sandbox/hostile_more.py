"""More programs that mean harm, as in hostile.py: variants and rarer ways. Run with `make test-hostile`.

REFUSED are the numbers of the system calls that the filter refuses on this machine.
"""

from tests.sandbox.hostile import ATTEMPT, CALL, ENDED, SLOW, Hostile, failed, harmless, stuck

MEMORY = ("memory",)
TREE = """
import ctypes, os, signal, sys, threading, time
def fork():
    try: return os.fork()
    except OSError: return 1
def burn(seconds):
    end = time.perf_counter() + seconds
    while time.perf_counter() < end: pass
def sleep():
    while True: time.sleep(999)
def handle_children(flags):
    class Action(ctypes.Structure):
        _fields_ = [('h', ctypes.c_void_p), ('m', ctypes.c_ulong * 16), ('f', ctypes.c_int), ('r', ctypes.c_void_p)]
    ctypes.CDLL(None).sigaction(17, ctypes.byref(Action(0, (ctypes.c_ulong * 16)(), flags, 0)), None)
"""


def tries(lines: str) -> Hostile:
    """Nothing of it works, and it ends by itself."""
    return Hostile(ATTEMPT + lines, ENDED, harmless, SLOW)


def calls(lines: str) -> Hostile:
    return Hostile(CALL + lines, ENDED, harmless, SLOW)


def takes(lines: str) -> Hostile:
    """More than 128 MB."""
    return Hostile(TREE + lines, MEMORY, limits=SLOW)


def hangs(lines: str) -> Hostile:
    return stuck(TREE + lines)


MORE: dict[str, Hostile] = {
    # memory
    "shared memory that is larger than the private folder": tries("""
from multiprocessing import shared_memory
attempt('large', lambda: shared_memory.SharedMemory(create=True, size=2**28))
"""),
    "shared memory that fills the private folder": Hostile("""
import mmap
for i in range(9):
    with open(f'/dev/shm/{i}', 'w+b') as f:
        f.truncate(2**23)
        mmap.mmap(f.fileno(), 0).write(b'x' * 2**23)
""", ENDED, lambda outcome: outcome.exit_code == -7),
    "pages of a file that are dropped": Hostile("""
import mmap, os
for _ in range(4): os.fork()
with open(f'{os.getpid()}', 'w+b') as f:
    f.truncate(2**22)
    m = mmap.mmap(f.fileno(), 0)
    for i in range(0, 2**22, 4096):
        m[i] = 1
        m.madvise(mmap.MADV_DONTNEED)
""", ENDED),
    "memory pushed out": takes("""
import mmap
kept = []
while True:
    m = mmap.mmap(-1, 2**22, flags=mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS)
    m.write(b'x' * 2**22)
    m.madvise(21)
    kept.append(m)
"""),
    "copies in children": takes("""
import mmap
m = mmap.mmap(-1, 48 << 20, flags=mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS)
for _ in range(8): fork() or (m.write(b'y' * (48 << 20)), sleep())
sleep()
"""),
    "memory in threads": takes("""
kept = []
for _ in range(20): threading.Thread(target=lambda: (kept.append(b'x' * 2**23), sleep())).start()
"""),
    "memory in a daemon": takes("""
if fork(): sleep()
os.setsid()
if fork(): os._exit(0)
kept = b'x' * 2**28
sleep()
"""),
    "memory that is handed from orphan to orphan": takes("""
kept = b'x' * (200 << 20)
if fork(): sleep()
while True:
    if fork(): os._exit(0)
    time.sleep(0.05)
"""),
    "memory in a thread's process whose leader has left": takes("""
threading.Thread(target=lambda: (time.sleep(1), b'x' * (200 << 20), sleep())).start()
ctypes.CDLL(None).pthread_exit(None)
"""),
    "page tables of many processes": takes("""
libc = ctypes.CDLL(None)
libc.mmap.restype = ctypes.c_void_p
libc.mmap.argtypes = [ctypes.c_void_p, ctypes.c_size_t, ctypes.c_int, ctypes.c_int, ctypes.c_int, ctypes.c_long]
for _ in range(4): os.fork()
for i in range(9000): ctypes.string_at(libc.mmap(2**40 + (i << 30), 4096, 1, 0x22, -1, 0), 1)
sleep()
"""),
    "datagrams of senders that have left": takes("""
import socket
kept = []
for i in range(40):
    kept.append(socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM))
    kept[-1].bind(f'd{i}')
    for _ in range(10):
        with socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM) as one:
            one.setblocking(False)
            one.sendto(b'x' * 150000, f'd{i}')
sleep()
"""),
    "pairs of sockets in every process": takes("""
import socket
for _ in range(30):
    if not fork():
        kept = [socket.socketpair() for _ in range(25)]
        sleep()
sleep()
"""),
    "sockets on their way in sockets": Hostile("""
import array, socket
one, other = socket.socketpair()
one.setblocking(False)
try:
    for _ in range(2000):
        pair = socket.socketpair()
        one.sendmsg([b'x'], [(socket.SOL_SOCKET, socket.SCM_RIGHTS, array.array('i', [s.fileno() for s in pair]))])
        for s in pair: s.close()
except OSError: pass
""", ("finished", "memory")),
    "pipes of all processes": Hostile("""
import fcntl, os
for _ in range(4): os.fork()
kept = []
try:
    while True:
        kept.append(os.pipe())
        os.set_blocking(kept[-1][1], False)
        try: fcntl.fcntl(kept[-1][1], 1031, 2**20)
        except OSError: pass
        try:
            while True: os.write(kept[-1][1], b'x' * 65536)
        except BlockingIOError: pass
except OSError: pass
""", ENDED, limits=SLOW),
    "pages lent to pipes": Hostile("""
import os
kept = []
with open('f', 'wb') as f: f.write(b'x' * 65536)
try:
    while True:
        reading, writing = os.pipe()
        with open('f', 'rb') as f: os.splice(f.fileno(), writing, 65536)
        os.unlink('f')
        with open('f', 'wb') as f: f.write(b'x' * 65536)
        kept.append(reading)
        os.close(writing)
except OSError: pass
""", ENDED),
    "watches": Hostile("""
import os, select
pollers = [select.epoll() for _ in range(20)]
for _ in range(30):
    for descriptor in os.pipe():
        for number in range(50, 60):
            os.dup2(descriptor, number)
            for one in pollers: one.register(number)
            os.close(number)
        os.close(descriptor)
""", ENDED),
    "locks": Hostile("""
import fcntl
with open('f', 'wb') as f:
    for i in range(3000): fcntl.lockf(f, fcntl.LOCK_EX, 1, 2**30 - 2 * i)
""", ("finished", "timeout")),
    "folders in folders": Hostile("""
import os
try:
    while True:
        os.mkdir('inner')
        os.chdir('inner')
except OSError: pass
""", ENDED),
    "links as long as can be": Hostile("""
import os
try:
    for i in range(10**6): os.symlink('x' * 4000, f'{i}')
except OSError: print(i)
""", ENDED, lambda outcome: int(outcome.stdout) < 20000),
    "attributes of files": Hostile("""
import os
try:
    for i in range(10**5): os.setxattr('main.py', f'user.{i}', b'x' * 60000)
except OSError: print(i)
""", ENDED, lambda outcome: int(outcome.stdout) < 2000),
    "deleted files that are open": Hostile("""
import os
kept, written = [], 0
try:
    while True:
        kept.append(open('f', 'wb', buffering=0))
        os.unlink('f')
        while written % 2**20 or not written: written += kept[-1].write(b'x' * 2**14)
        written += kept[-1].write(b'x' * 2**14)
except OSError: print(written >> 20)
""", ENDED, lambda outcome: int(outcome.stdout) <= 128),
    "reserving a file": tries("""
with open('f', 'wb') as f:
    attempt('more than the folder', lambda: os.posix_fallocate(f.fileno(), 0, 2**40))
    attempt('one hole after another', lambda: [os.pwrite(f.fileno(), b'x' * 2**20, i << 22) for i in range(999)])
"""),
    "a huge list of arguments": tries("attempt('exec', lambda: os.execv(sys.executable, ['x' * 10**5] * 1000))"),
    "locking memory": calls("call('mlockall', 3)\ncall('mlock', ctypes.create_string_buffer(2**20), 2**20)"),
    "an array that is too large": Hostile("import numpy\nnumpy.ones(2**40)", ENDED, failed, SLOW),
    "a number of many digits": Hostile("1 << 2**43", ("finished", "memory"), failed),
    "a text of brackets": Hostile("import json\njson.loads('[' * 10**6)", ENDED, failed),
    "a program of brackets": Hostile("eval('(' * 10**5)", ENDED, failed),
    "growth by doubling": Hostile("x = [0]\nwhile True: x += x", ("memory", "finished"), failed, SLOW),
    "a queue that nobody reads": Hostile("""
import multiprocessing
queue = multiprocessing.Queue()
while True: queue.put(b'x' * 2**20)
""", MEMORY, limits=SLOW),
    # seconds
    "sleepers that wake together": hangs("""
for _ in range(30):
    if not fork():
        while True:
            time.sleep(0.05 - time.monotonic() % 0.05)
            burn(0.001)
sleep()
"""),
    "orphans without end": hangs("""
for _ in range(8):
    if not fork():
        while True:
            if not fork():
                if not fork(): burn(0.001)
                os._exit(0)
            os.wait()
sleep()
"""),
    "children that nobody has to wait for": hangs("""
handle_children(2)
for _ in range(8):
    if not fork():
        while True:
            if not fork():
                burn(0.005)
                os._exit(0)
            time.sleep(0.001)
sleep()
"""),
    "children that are ignored at times": hangs("""
for _ in range(8):
    if not fork():
        while True:
            signal.signal(signal.SIGCHLD, signal.SIG_IGN)
            if not fork():
                burn(0.002)
                os._exit(0)
            time.sleep(0.003)
            signal.signal(signal.SIGCHLD, signal.SIG_DFL)
sleep()
"""),
    "stopping and continuing": hangs("""
children = []
for _ in range(20):
    pid = fork()
    if not pid:
        while True: pass
    children.append(pid)
while True:
    for pid in children: os.kill(pid, signal.SIGSTOP)
    time.sleep(0.02)
    for pid in children: os.kill(pid, signal.SIGCONT)
    time.sleep(0.002)
"""),
    "stopping its group": hangs("fork()\nos.killpg(0, signal.SIGSTOP)"),
    "threads that sleep for moments": hangs("""
def nap():
    while True: time.sleep(1e-6)
for _ in range(28): threading.Thread(target=nap).start()
"""),
    "threads that compute": hangs("for _ in range(28): threading.Thread(target=burn, args=(99,)).start()"),
    "giving the core away": hangs("for _ in range(4): os.fork()\nwhile True: os.sched_yield()"),
    "starting programs": hangs("import subprocess\nwhile True: subprocess.run(['/bin/true'])"),
    "becoming itself": hangs("os.execv(sys.executable, [sys.executable, os.path.abspath(__file__)])"),
    "becoming a shell": hangs("os.execv('/bin/sh', ['sh', '-c', 'while :; do :; done'])"),
    "an alarm every moment": hangs("""
signal.signal(signal.SIGALRM, lambda *_: None)
signal.setitimer(signal.ITIMER_REAL, 1e-5, 1e-5)
sleep()
"""),
    "waiting for a signal": hangs("signal.pause()"),
    "ignoring the limit's own signal": hangs("signal.signal(signal.SIGXCPU, signal.SIG_IGN)\nwhile True: pass"),
    "a pipe by name": hangs("os.mkfifo('fifo')\nopen('fifo')"),
    "a lock taken twice": hangs("lock = threading.Lock()\nlock.acquire()\nlock.acquire()"),
    "dead children that are kept": hangs("for _ in range(28): fork() or os._exit(0)\nsleep()"),
    "an adoptive parent that does not reap": hangs("""
ctypes.CDLL(None).prctl(36, 1, 0, 0, 0)
for _ in range(14):
    if not fork():
        fork()
        os._exit(0)
sleep()
"""),
    "forks of threads": hangs("""
def work():
    while True:
        pid = fork()
        if not pid: os._exit(0)
        if pid > 1: os.waitpid(pid, 0)
for _ in range(8): threading.Thread(target=work).start()
"""),
    "a pool without end": hangs("import multiprocessing\nmultiprocessing.Pool(4).map(time.sleep, [99] * 99)"),
    "computing in C": hangs("sum(range(10**15))"),
    "a power": hangs("pow(3, 10**8)"),
    "a hash that is always the same": hangs("""
class Same:
    def __hash__(self): return 1
    def __eq__(self, other): return self is other
{Same() for _ in range(10**6)}
"""),
    "an exit that does not come": hangs("import atexit\natexit.register(sleep)"),
    "a finalizer that does not end": hangs("""
class Stays:
    def __del__(self): sleep()
Stays()
"""),
    # output
    "output at the end": Hostile("import atexit\natexit.register(lambda: [print('x' * 9999) for _ in range(999)])",
        ("output",), limits=SLOW),
    "output of a file": Hostile("""
import os
with open('f', 'wb') as f: f.write(b'x' * 2**20)
with open('f', 'rb') as f:
    while True: os.sendfile(1, f.fileno(), 0, 2**20)
""", ("output",), limits=SLOW),
    "output of a daemon": Hostile("""
import os
if os.fork(): os._exit(0)
while True: print('x' * 9999)
""", ("finished", "output")),
    "bytes that are no text": Hostile("import os\nos.write(1, bytes(range(256)))", ENDED, lambda o: "�" in o.stdout),
    "writing to its input": tries("""
import mmap
attempt('write', lambda: os.write(0, b'x'))
attempt('grow', lambda: os.ftruncate(0, 2**20))
attempt('map', lambda: mmap.mmap(0, 4096))
"""),
    # getting out
    "every refused call": calls("for number in REFUSED: call('syscall', number, 0, 0, 0, 0, 0, 0)"),
    "calls that come with later kernels": calls("for i in range(468, 1100): call('syscall', i, 0, 0, 0, 0, 0, 0)"),
    "calls of another kind": calls("for i in (39, 57, 101): call('syscall', 0x40000000 + i, 0, 0, 0, 0)"),
    "calls of the 32-bit machine": Hostile("""
import ctypes, mmap, os
if os.uname().machine != 'x86_64': raise SystemExit(1)
code = mmap.mmap(-1, 4096, flags=mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS, prot=7)
code.write(bytes.fromhex('b814000000cd80c3'))
print(ctypes.CFUNCTYPE(ctypes.c_int)(ctypes.addressof(ctypes.c_char.from_buffer(code)))())
""", ENDED, lambda outcome: outcome.exit_code != 0 and outcome.stdout == "", SLOW),
    "its own filter": calls("call('prctl', 22, 2, 0, 0, 0)\ncall('prctl', 22, 0, 0, 0, 0)"),
    "namespaces by a program of the system": tries("""
import subprocess
for command in ('unshare -r id', 'nsenter -t 1 -a id', 'setpriv --reuid 0 id'):
    if 'uid=0' in subprocess.run(command, shell=True, capture_output=True, text=True).stdout: print(command)
"""),
    "a program with the rights of root": tries("""
import shutil, subprocess
shutil.copy('/bin/sh', 'sh')
attempt('chown', lambda: os.chown('sh', 0, 0))
os.chmod('sh', 0o6755)
print(subprocess.run(['./sh', '-pc', 'id -u'], capture_output=True, text=True).stdout.replace('1000\\n', ''), end='')
"""),
    "climbing": tries("""
for path in ('../' * 50, '/..', '/sandbox/../..', './..//..'):
    os.chdir(path)
    if os.listdir() != os.listdir('/') or os.path.exists('etc/shadow'): print(path)
    os.chdir('/sandbox')
attempt('root', lambda: os.chroot('/sandbox'))
"""),
    "files by their numbers": calls("""
handle = ctypes.create_string_buffer(bytes.fromhex('0800000001000000') + b'\\2' * 120)
for folder in (0, os.open('/', os.O_RDONLY)): call('open_by_handle_at', folder, handle, 0)
"""),
    "tracing its child": calls("""
pid = os.fork()
if not pid:
    import time
    time.sleep(999)
call('ptrace', 16, pid, 0, 0)
call('ptrace', 0x4206, pid, 0, 0)
os.kill(pid, 9)
"""),
    "the first process by its descriptor": tries("""
import signal
first = os.pidfd_open(1)
for number in (9, 15, 19): signal.pidfd_send_signal(first, number)
"""),
    "stopping the first process": tries("import signal\nos.kill(1, signal.SIGSTOP)\nos.kill(1, signal.SIGSEGV)"),
    "rights": calls("""
call('prctl', 28, 0x2F, 0, 0, 0)
call('prctl', 47, 2, 21, 0, 0)
call('capset', (ctypes.c_uint32 * 2)(0x20080522, 0), (ctypes.c_uint32 * 6)(*[2**32 - 1] * 6))
attempt('groups', lambda: os.setgroups([0]))
for change in (os.setgid, os.setegid, os.seteuid): attempt(change.__name__, lambda: change(0))
"""),
    "typing for others": tries("import fcntl\nfor fd in (0, 1, 2): attempt(fd, lambda: fcntl.ioctl(fd, 0x5412, b'x'))"),
    "the clock": tries("import time\nattempt('clock', lambda: time.clock_settime(time.CLOCK_REALTIME, 0))"),
    "going first": tries("""
attempt('nice', lambda: os.nice(-5))
attempt('priority', lambda: os.setpriority(os.PRIO_PROCESS, 0, -5))
attempt('real time', lambda: os.sched_setscheduler(0, os.SCHED_FIFO, os.sched_param(1)))
"""),
    "a core dump": Hostile("import os\nos.abort()", ENDED, lambda outcome: outcome.exit_code == -6),
    "the libraries of others": tries("""
import json, numpy, py_compile
for module in (json, numpy): attempt('write', lambda: open(module.__file__, 'a'))
attempt('compile', lambda: py_compile.compile(json.__file__, json.__file__ + 'c', doraise=True))
attempt('move', lambda: os.rename(os.path.dirname(json.__file__), 'json'))
"""),
    "moving what is not its own": tries("""
for name in ('/usr', '/etc', '/dev/null', '/sandbox'): attempt(name, lambda: os.rename(name, name + '2'))
attempt('link', lambda: os.link(sys.executable, 'python'))
attempt('remove', lambda: os.rmdir('/sandbox'))
"""),
    "services of the machine": tries("""
import socket
for address in ('/run/docker.sock', '/var/run/docker.sock', '/run/dbus/system_bus_socket', '/run/containerd/x',
                '\\0/tmp/.X11-unix/X0', '/dev/log', '/run/user/0/bus'):
    attempt(address, lambda: socket.socket(socket.AF_UNIX).connect(address))
"""),
    "serving": tries("""
import socket
attempt('serve', lambda: socket.create_server(('0.0.0.0', 0)))
attempt('serve 6', lambda: socket.create_server(('::', 0), family=socket.AF_INET6))
attempt('raw', lambda: socket.socket(socket.AF_INET, socket.SOCK_RAW, 1))
attempt('packets', lambda: socket.socket(socket.AF_PACKET, socket.SOCK_RAW))
attempt('pair', lambda: socket.socketpair(socket.AF_INET))
"""),
    "its environment": tries("""
known = 'PATH HOME TMPDIR LANG PYTHONHASHSEED PYTHONUTF8 MALLOC_ARENA_MAX LC_CTYPE PWD'.split()
print(*(name for name in os.environ if name not in known and not name.endswith('_NUM_THREADS')), end='')
"""),
    "many open files": tries("attempt('files', lambda: [os.open('main.py', 0) for _ in range(65)])"),
    "pretending to be the harness": Hostile("""
import os
os.write(1, b'\\n0123456789abcdef0123456789abcdef {"test": 0, "passed": true, "why": null}\\n')
os.kill(os.getpid(), 9)
""", ENDED, failed),
}  # fmt: skip
