"""A seccomp filter that makes one system call fail for a program and all it starts: a kernel that lacks something."""
import ctypes
import errno
import struct

# x86_64
FACILITIES = {
    "userns": None,  # clone and unshare with CLONE_NEWUSER
    "landlock": [444], "seccomp": [317], "pivot_root": [155], "mount": [165], "open_tree": [428], "move_mount": [429],
    "mount_setattr": [442], "openat2": [437], "setns": [308], "unshare": [272], "keyctl": [250], "capset": [126],
    "close_range": [436], "pidfd_open": [434], "umount2": [166], "sethostname": [170], "memfd_create": [319], "process_vm_readv": [310],
}
# What a sandbox may lack, and how the receipt then says it ("" where something else takes its place).
OPTIONAL = {"landlock": "Landlock", "keyctl": ""}

LD, JEQ, JSET, RET = 0x20, 0x15, 0x45, 0x06
ALLOW, ERRNO = 0x7FFF0000, 0x00050000


def _op(code, jt, jf, k):
    return struct.pack("<HBBI", code, jt, jf, k)


def take_away(name, error):
    """In the child, before exec."""
    number = getattr(errno, error)
    refuse = ERRNO | number
    program = [_op(LD, 0, 0, 0)]
    if FACILITIES[name] is None:
        # clone (56) and unshare (272) with CLONE_NEWUSER; clone3 (435) says that it does not exist.
        program += [_op(JEQ, 0, 1, 435), _op(RET, 0, 0, ERRNO | errno.ENOSYS),
                    _op(JEQ, 1, 0, 56), _op(JEQ, 0, 3, 272),
                    _op(LD, 0, 0, 16), _op(JSET, 0, 1, 0x10000000), _op(RET, 0, 0, refuse)]
    else:
        for call in FACILITIES[name]:
            program += [_op(JEQ, 0, 1, call), _op(RET, 0, 0, refuse)]
    program.append(_op(RET, 0, 0, ALLOW))
    code = ctypes.create_string_buffer(b"".join(program))
    head = struct.pack("HxxxxxxP", len(program), ctypes.addressof(code))
    libc = ctypes.CDLL(None, use_errno=True)
    if libc.prctl(38, 1, 0, 0, 0) or libc.prctl(22, 2, head, 0, 0):
        raise OSError(ctypes.get_errno(), "seccomp")
