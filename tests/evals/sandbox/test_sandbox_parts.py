"""What a sandbox is made of, piece by piece."""

import os
import resource
import signal
import stat
import time
from collections.abc import Callable
from pathlib import Path

import psutil
import pytest

from ddtree.errors import ConfigError
from ddtree.evals.sandbox import bubblewrap as bubblewrap_module
from ddtree.evals.sandbox import clearing, direct, interpreter, seccomp, slot
from ddtree.evals.sandbox.folder import remove, work_folder
from ddtree.evals.sandbox.inside import guard
from ddtree.evals.sandbox.limits import Limits
from ddtree.evals.sandbox.slot import UIDS, claim_slot
from ddtree.evals.sandbox.tier import Place
from mutations.planting import Mutation, assert_caught

pytestmark = pytest.mark.sandbox

Act = Callable[[Callable[[], object]], object]


def forked(check: Callable[[], None]) -> None:
    """Run a check in a child of its own, which may give up what it likes and has no other
    children."""
    pid = os.fork()
    if pid == 0:
        status = 1
        try:
            guard.prctl(guard.PR_SET_CHILD_SUBREAPER, 1)
            check()
            status = 0
        finally:
            for process in psutil.Process().children(recursive=True):
                process.kill()
            os._exit(status)
    assert os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1]) == 0


def leader(act: Act) -> int:
    """A session's leader that does so, and then waits. Returns once it is `ready`."""
    reading, writing = os.pipe()
    pid = os.fork()
    if pid == 0:
        try:
            os.setsid()
            act(lambda: os.write(writing, b"."))
            time.sleep(60)
        finally:
            os._exit(7)
    assert os.read(reading, 1) == b"."
    return pid


def daemonise(ready: Callable[[], object]) -> None:
    """A tree that ignores signals: a grandchild in a session of its own, with a child."""
    signal.signal(signal.SIGTERM, signal.SIG_IGN)
    if os.fork() == 0:
        os.setsid()
        if os.fork() == 0:
            ready()
        time.sleep(60)


def check_tree_is_cleared() -> None:
    def cleared() -> None:
        left = clearing.clear_away(leader(daemonise), None)
        assert left.status == -signal.SIGKILL
        with pytest.raises(ChildProcessError):
            os.waitpid(-1, os.WNOHANG)

    forked(cleared)


def check_exit_is_told() -> None:
    def leave(ready: Callable[[], object]) -> None:
        ready()
        os._exit(3)

    def told() -> None:
        pid = leader(leave)
        os.waitid(os.P_PID, pid, os.WEXITED | os.WNOWAIT)
        assert clearing.clear_away(pid, None).status == 3

    forked(told)


def check_processor_time_is_counted() -> None:
    def orphan(ready: Callable[[], object]) -> None:
        if os.fork() == 0:
            until = time.process_time() + 0.2
            while time.process_time() < until:
                pass
            ready()
            time.sleep(60)
        os._exit(0)

    def counted() -> None:
        assert clearing.clear_away(leader(orphan), None).cpu_s >= 0.15

    forked(counted)


CLEARING = (check_tree_is_cleared, check_exit_is_told, check_processor_time_is_counted)


@pytest.mark.parametrize("check", CLEARING, ids=lambda check: check.__name__)
def test_clearing_away(check) -> None:
    check()


def test_all_of_a_uid_are_killed_and_nobody_else() -> None:
    taken = claim_slot()

    def killed() -> None:
        bystander = leader(lambda ready: ready())
        pid = leader(lambda ready: (guard.become(taken.uid), ready()))
        clearing.kill_all_of(taken.uid)
        assert os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1]) == -signal.SIGKILL
        assert os.waitpid(bystander, os.WNOHANG) == (0, 0)
        os.kill(bystander, signal.SIGKILL)

    forked(killed)
    taken.lock.close()


def test_root_is_never_killed_by_uid() -> None:
    def spared() -> None:
        bystander = leader(lambda ready: ready())
        clearing.kill_all_of(0)
        time.sleep(0.1)
        assert os.waitpid(bystander, os.WNOHANG) == (0, 0)
        os.kill(bystander, signal.SIGKILL)

    forked(spared)


def test_slots_are_taken_once(monkeypatch) -> None:
    # The far end, where no other test's workers are.
    monkeypatch.setattr(slot, "UIDS", UIDS[-3:-1])
    one, other = claim_slot(), claim_slot()
    assert (one.uid, other.uid) == (UIDS[-3], UIDS[-2])
    one.lock.close()
    again = claim_slot()
    assert again.uid == one.uid
    other.lock.close()
    again.lock.close()


def test_no_slot_is_left(monkeypatch) -> None:
    monkeypatch.setattr(slot, "UIDS", UIDS[-1:])
    taken = claim_slot()
    with pytest.raises(ConfigError, match="in use"):
        claim_slot()
    taken.lock.close()


def test_a_work_folder_is_gone_afterwards(tmp_path: Path) -> None:
    with work_folder(tmp_path, UIDS[0]) as folder:
        found = folder.stat()
        assert (found.st_uid, found.st_gid, stat.S_IMODE(found.st_mode)) == (
            UIDS[0],
            UIDS[0],
            0o700,
        )
        deep = folder
        for _ in range(50):
            deep = deep / "d"
            deep.mkdir()
        (deep / "file").write_text("x")
        (folder / "link").symlink_to("/etc")
        deep.chmod(0)
    assert list(tmp_path.iterdir()) == []
    assert Path("/etc/passwd").exists()
    remove(folder)


def test_limits_name_what_the_kernel_knows() -> None:
    limits = Limits(cpu_s=0.5, processes=7).rlimits(others=100)
    assert all(hasattr(resource, name) for name in limits)
    assert limits["RLIMIT_CPU"] == (1, 2)
    assert limits["RLIMIT_NPROC"] == (107, 107)
    assert limits["RLIMIT_CORE"] == (0, 0)


def test_limits_that_are_lower_already_stay() -> None:
    def lowered() -> None:
        resource.setrlimit(resource.RLIMIT_NOFILE, (20, 20))
        guard.become(UIDS[-1])
        guard._limit(resource.RLIMIT_NOFILE, 64, 64)
        assert resource.getrlimit(resource.RLIMIT_NOFILE) == (20, 20)

    forked(lowered)


def test_the_filter_is_whole_instructions() -> None:
    found = seccomp.filter_instructions()
    assert len(found) % 8 == 0
    assert len(found) // 8 > len(seccomp._REFUSED)


def test_a_missing_library_says_what_to_install(monkeypatch) -> None:
    monkeypatch.setitem(__import__("sys").modules, "pyseccomp", None)
    with pytest.raises(ConfigError, match="install pyseccomp"):
        direct.landlock()
    found = bubblewrap_module.bubblewrap()
    assert found.variant == "B"
    assert "no filter of system calls" in found.label
    with pytest.raises(ConfigError, match="variant C needs"):
        bubblewrap_module.bubblewrap("C")


def test_a_missing_bubblewrap_says_what_to_install(monkeypatch) -> None:
    monkeypatch.setattr(bubblewrap_module, "_COMMANDS", "/nowhere")
    with pytest.raises(ConfigError, match="apt install bubblewrap"):
        bubblewrap_module.bubblewrap()


def test_an_old_kernel_is_refused(monkeypatch) -> None:
    monkeypatch.setattr(direct, "landlock_abi", lambda: 2)
    with pytest.raises(ConfigError, match="version 2 of its interface, expected 3"):
        direct.landlock()


def test_interpreters_that_others_can_not_reach_are_replaced(monkeypatch, tmp_path: Path) -> None:
    closed = tmp_path / "closed"
    (closed / "bin").mkdir(parents=True)
    hidden = interpreter.Interpreter(str(closed / "bin" / "python3"), str(closed), "3.11.0")
    Path(hidden.executable).touch(0o755)
    closed.chmod(0o700)
    monkeypatch.setattr(interpreter, "this_interpreter", lambda: hidden)
    assert interpreter.reachable_interpreter() == interpreter.system_interpreter()


def test_a_missing_system_interpreter_says_so(monkeypatch) -> None:
    monkeypatch.setattr(interpreter, "SYSTEM_PYTHON", Path("/nowhere/python3"))
    with pytest.raises(ConfigError, match="every user can reach"):
        interpreter.system_interpreter()


@pytest.mark.parametrize("make", [bubblewrap_module.bubblewrap, direct.landlock, direct.plain])
def test_launches_hold_nothing_of_our_environment(make, monkeypatch) -> None:
    monkeypatch.setenv("SOMETHING_OF_OURS", "secret")
    launch = make().launch(Place(UIDS[0], "/tmp/x"), Limits())
    assert "SOMETHING_OF_OURS" not in launch.env
    assert "secret" not in " ".join((*launch.argv, *launch.env.values()))


MUTATIONS = (
    Mutation(
        "only the leader is killed",
        clearing.__name__,
        (("            _kill_descendants()\n", ""), ("_PATIENCE_S = 20.0", "_PATIENCE_S = 1.0")),
        (check_tree_is_cleared,),
        harmless_to=check_exit_is_told,
    ),
    Mutation(
        "orphans are not waited for",
        clearing.__name__,
        (("        if not reaped.left:\n", "        if True:\n"),),
        (check_tree_is_cleared,),
        harmless_to=check_exit_is_told,
    ),
    Mutation(
        "the time of orphans is forgotten",
        clearing.__name__,
        (("        cpu_s += reaped.cpu_s\n", ""),),
        (check_processor_time_is_counted,),
        harmless_to=check_exit_is_told,
    ),
)


@pytest.mark.parametrize("mutation", MUTATIONS, ids=lambda mutation: mutation.name)
def test_planted_bugs_are_caught(mutation: Mutation) -> None:
    assert_caught(mutation)
