//! Many processes, killed processes, and disks that fail.

use super::*;
use crate::backend::cuda::own_process::{again, passed};
use std::io::{BufRead, BufReader, Read};
use std::process::{Child, Command, Stdio};
use std::time::Instant;

const KERNELS: std::ops::Range<u8> = 0..8;
const FOLDER: &str = "ABREAST_TEST_FOLDER";

/// A test of this file in a process of its own, started by `wrapper` where there is one.
fn process(test: &str, folder: &Path, wrapper: &[&str]) -> Child {
    let test = format!("{}::{test}", module_path!().split_once("::").expect("in the crate").1);
    let mut command = again(&test, wrapper);
    command.env(FOLDER, folder).stdin(Stdio::piped()).stdout(Stdio::piped()).spawn().expect("a process")
}

/// The cache of a process that `process` started.
fn of_parent() -> Cache {
    Cache::at(Path::new(&std::env::var_os(FOLDER).expect("only for a process that another test starts")))
}

/// Waits for a process; its one test must have run and passed.
fn passes(child: Child) {
    let output = child.wait_with_output().expect("it ends");
    let (passed, said) = passed(&output);
    assert!(passed, "{}: {said}", output.status);
}

/// Every file with a kernel's name holds that kernel; how many there are, and how many other files.
fn count_whole(cache: &Cache) -> (usize, usize) {
    let folder = cache.folder.as_ref().expect("a folder");
    let there: Vec<u8> = KERNELS.filter(|&kernel| path(cache, kernel).exists()).collect();
    for &kernel in &there {
        assert_eq!(ask(cache, kernel), (code(kernel), false), "kernel {kernel} is not whole");
    }
    (there.len(), names(folder).len() - there.len())
}

#[test]
fn cold_processes_at_once() {
    let folder = tempdir().expect("a folder");
    let place = folder.path().join("new");
    let mut children: Vec<Child> = (0..32).map(|_| process("is_cold", &place, &[])).collect();
    // All wait for this.
    children.iter_mut().for_each(|child| drop(child.stdin.take()));
    children.into_iter().for_each(passes);
    assert_eq!(count_whole(&Cache::at(&place)), (KERNELS.len(), 0));
}

#[test]
#[ignore = "a process of cold_processes_at_once"]
fn is_cold() {
    std::io::stdin().read_to_end(&mut Vec::new()).expect("the start");
    let cache = of_parent();
    for kernel in KERNELS {
        // Time for the others to find nothing either.
        let make = || {
            std::thread::sleep(Duration::from_millis(5));
            Ok::<_, String>(code(kernel))
        };
        let got = cache.get_or(&[b"kernel", &[kernel]], make, |code| Ok(code.to_vec()));
        assert_eq!(got, Ok(code(kernel)));
    }
}

#[test]
fn killed_while_storing() {
    let folder = tempdir().expect("a folder");
    let cache = Cache::at(folder.path());
    // Some with a file unfinished, at least one, however busy the machine is.
    let mut killed = 0;
    while killed < 20 || count_whole(&cache).1 == 0 && killed < 500 {
        let mut child = process("stores_again_and_again", folder.path(), &[]);
        let mut lines = BufReader::new(child.stdout.take().expect("piped")).lines();
        assert!(lines.any(|line| line.is_ok_and(|line| line.contains("storing"))));
        std::thread::sleep(Duration::from_micros(700 * (killed % 20)));
        child.kill().expect("killed");
        child.wait().expect("it ends");
        assert_eq!(count_whole(&cache).0, KERNELS.len());
        killed += 1;
    }
    let (_, unfinished) = count_whole(&cache);
    println!("{unfinished} of {killed} processes were killed with a file unfinished");
    assert!(unfinished > 0, "no process was killed in time");
    for name in names(folder.path()) {
        let file = fs::File::options().append(true).open(folder.path().join(name)).expect("a file");
        file.set_modified(std::time::SystemTime::now() - 2 * ABANDONED).expect("a time");
    }
    // The next that stores anything clears up.
    fs::remove_file(path(&cache, 0)).expect("removed");
    ask(&cache, 0);
    assert_eq!(count_whole(&cache), (KERNELS.len(), 0));
}

#[test]
#[ignore = "a process of killed_while_storing"]
fn stores_again_and_again() {
    let (cache, start) = (of_parent(), Instant::now());
    for round in 0.. {
        for kernel in KERNELS {
            cache.store(&name(&[b"kernel", &[kernel]]), &code(kernel)).expect("stored");
        }
        if round == 0 {
            println!("storing");
        }
        assert!(start.elapsed() < Duration::from_secs(60), "nobody killed it");
    }
}

/// Has a shell mount something before it becomes the child, in a mount namespace of its own: the machine's stay as they are.
fn mounted(script: &'static str) -> Option<[&'static str; 6]> {
    let namespace = ["unshare", "--map-root-user", "--mount", "sh", "-c"];
    let probe = Command::new("unshare").args(&namespace[1..]).arg("mount -t tmpfs none /tmp").output();
    if !probe.as_ref().is_ok_and(|output| output.status.success()) {
        println!("SKIPPED 1: nothing can be mounted here: {probe:?}");
        return None;
    }
    let [a, b, c, d, e] = namespace;
    Some([a, b, c, d, e, script])
}

/// Scripts for `sh`; the child's words follow as `$0` and on.
const FULL: &str = r#"mount -t tmpfs -o size=100k none "$ABREAST_TEST_FOLDER" && exec "$0" "$@""#;
const READ_ONLY: &str =
    r#"cd "$ABREAST_TEST_FOLDER" && mount --bind . . && mount -o remount,bind,ro "$PWD" && exec "$0" "$@""#;
const SHORT_FILES: &str = r#"trap "" XFSZ && ulimit -f 1 && exec "$0" "$@""#;

#[test]
fn a_full_disk() {
    let Some(wrapper) = mounted(FULL) else { return };
    let folder = tempdir().expect("a folder");
    passes(process("stores_some", folder.path(), &wrapper));
}

/// As a disk that becomes full within a file, also where nothing can be mounted.
#[cfg(unix)]
#[test]
fn a_write_that_fails_halfway() {
    let folder = tempdir().expect("a folder");
    passes(process("stores_some", folder.path(), &["sh", "-c", SHORT_FILES]));
    assert_eq!(count_whole(&Cache::at(folder.path())), (0, 0));
}

#[test]
#[ignore = "a process of a_full_disk and a_write_that_fails_halfway"]
fn stores_some() {
    let cache = of_parent();
    for kernel in KERNELS {
        assert_eq!(ask(&cache, kernel), (code(kernel), true));
    }
    let (whole, others) = count_whole(&cache);
    assert!(whole < KERNELS.len(), "the disk was not full");
    assert_eq!(others, 0, "unfinished files");
}

#[test]
fn a_read_only_folder() {
    let Some(wrapper) = mounted(READ_ONLY) else { return };
    let (folder, _cache) = warm();
    passes(process("stores_nothing", folder.path(), &wrapper));
}

#[test]
#[ignore = "a process of a_read_only_folder"]
fn stores_nothing() {
    let cache = of_parent();
    fs::write(path(&cache, 7), "").expect_err("a folder that cannot be written to");
    assert_eq!([ask(&cache, 0), ask(&cache, 1)], [(code(0), false), (code(1), false)]);
    assert_eq!([ask(&cache, 2), ask(&cache, 2)], [(code(2), true), (code(2), true)]);
    assert_eq!(count_whole(&cache), (2, 0));
}
