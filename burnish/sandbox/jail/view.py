"""What of the file system a program sees: a new root, built once and shared by all programs of a supervisor.

It holds the system's programs and libraries and the folders of the Python that runs here, read-only and at their own
paths, four harmless devices, and an empty /sandbox, over which each program gets its own file system; /tmp leads
there too. Nothing else is there: no home folder, no project, no /proc, no /sys.
"""

import glob
import os
import re
import stat

from burnish.sandbox.jail import linux

SYSTEM = ("/usr", "/bin", "/sbin", "/lib", "/lib32", "/lib64", "/libx32", "/nix/store", "/gnu/store")
#: Where the loader finds libraries; which of several libraries is meant (Debian); the clock's zone.
SETTINGS = ("/etc/ld.so.cache", "/etc/alternatives", "/etc/localtime")
#: Not /dev/zero: a shared mapping of it is memory without limit (seccomp.py, on mmap).
DEVICES = ("/dev/null", "/dev/full", "/dev/random", "/dev/urandom")
#: Of a Python installation. Not the whole folder: it can be someone's home.
OF_PYTHON = ("bin", "lib", "lib64", "pyvenv.cfg", "share/zoneinfo")
PRIVATE = "/sandbox"
STAGING = os.path.realpath("/tmp")  # the new root is built over it; what it hides was opened before
USERS = {
    "/etc/passwd": "sandbox:x:1000:1000::/sandbox:/bin/sh\n",
    "/etc/group": "sandbox:x:1000:\n",
    "/etc/hosts": "127.0.0.1 localhost\n",
}
READ_ONLY = linux.MS_RDONLY | linux.MS_NOSUID | linux.MS_NODEV
OPTIONS = {
    "ro": linux.MS_RDONLY, "nosuid": linux.MS_NOSUID, "nodev": linux.MS_NODEV, "noexec": linux.MS_NOEXEC,
    "noatime": linux.MS_NOATIME, "nodiratime": linux.MS_NODIRATIME, "relatime": linux.MS_RELATIME,
}  # fmt: skip


def enter(python_folders: tuple[str, ...]) -> None:
    """Make the new root this process's own. It must already be in a separate mount namespace."""
    linux.mount("none", "/", None, linux.MS_REC | linux.MS_PRIVATE)
    wanted = [*SYSTEM, *SETTINGS, *(os.path.join(folder, part) for folder in python_folders for part in OF_PYTHON)]
    # Without those below another one: what lies below a link is wanted by its own path too, and would otherwise be made
    # wherever the link leads, which is outside.
    there = {os.path.normpath(path) for path in wanted if os.path.lexists(path)}
    outermost = sorted(path for path in there if not any(path.startswith(other + "/") for other in there))
    sources = {path: os.open(path, os.O_PATH | os.O_NOFOLLOW) for path in outermost}
    devices = {path: os.open(path, os.O_PATH) for path in DEVICES}
    linux.mount("tmpfs", STAGING, "tmpfs", linux.MS_NOSUID | linux.MS_NODEV, "size=1m,mode=0755")
    for path, source in sources.items():
        _show(path, source)
    for folder in python_folders:  # editable projects lie outside; the hooks that point there would run at every start
        for hook in glob.glob(f"{STAGING}{glob.escape(folder)}/lib*/python*/site-packages/__editable__*.pth"):
            empty = os.open(_parents_made("/etc/empty"), os.O_CREAT | os.O_RDONLY, 0o644)
            linux.mount(f"/proc/self/fd/{empty}", hook, None, linux.MS_BIND)
            os.close(empty)
    for path, source in devices.items():
        _show(path, source)
    _make_read_only()
    for path, text in USERS.items():
        with open(_parents_made(path), "w") as file:
            file.write(text)
    os.mkdir(STAGING + PRIVATE)
    os.symlink(PRIVATE, STAGING + "/dev/shm")  # where libc keeps semaphores and shared memory
    if not os.path.lexists(STAGING + "/tmp"):  # unless Python itself lies there
        os.symlink(PRIVATE, STAGING + "/tmp")
    linux.mount("none", STAGING, None, linux.MS_REMOUNT | linux.MS_BIND | READ_ONLY)
    for descriptor in (*sources.values(), *devices.values()):
        os.close(descriptor)
    os.chdir(STAGING)
    # Take this folder as root and leave the old one. Docker's filter refuses that even to those who may mount; then the
    # old one stays below the new one, from where nothing leads to it.
    try:
        linux.pivot_root(".", ".")  # the old root now lies over the new one
    except PermissionError:
        linux.mount(STAGING, "/", None, linux.MS_MOVE)
        linux.chroot(".")
    else:
        linux.unmount(".")
    os.chdir("/")


def _show(path: str, source: int) -> None:
    target, opened = _parents_made(path), f"/proc/self/fd/{source}"
    if os.path.lexists(target):
        return
    kind = os.fstat(source).st_mode
    if stat.S_ISLNK(kind):
        os.symlink(os.readlink("", dir_fd=source), target)
        return
    if stat.S_ISDIR(kind):
        os.mkdir(target)
    else:
        os.close(os.open(target, os.O_CREAT | os.O_WRONLY, 0o644))
    linux.mount(opened, target, None, linux.MS_BIND | linux.MS_REC)


def _parents_made(path: str) -> str:
    target = STAGING + path
    os.makedirs(os.path.dirname(target), exist_ok=True)
    return target


def _make_read_only() -> None:
    """All that is mounted in the new root. The kernel lets a mount lose none of its restrictions, so they are kept."""
    with open("/proc/self/mountinfo", encoding="utf-8", errors="surrogateescape") as file:
        mounts = [line.split(" ")[:6] for line in file]
    devices = [STAGING + path for path in DEVICES]  # which can still be written to, but have no other times or rights
    parents = {number: parent for number, parent, *_ in mounts}
    root = [number for number, _, _, _, path, _ in mounts if path == STAGING][-1]  # older ones lie below it
    for number, _, _, _, path, options in mounts:
        above = number
        while above != root and parents.get(above, above) != above:
            above = parents[above]
        if number != root and above == root:
            kept = sum(OPTIONS.get(word, 0) for word in options.split(","))
            target = re.sub(r"\\([0-7]{3})", lambda match: chr(int(match[1], 8)), path)
            lost = READ_ONLY if target not in devices else linux.MS_RDONLY | linux.MS_NOSUID
            linux.mount("none", target, None, linux.MS_REMOUNT | linux.MS_BIND | kept | lost)
