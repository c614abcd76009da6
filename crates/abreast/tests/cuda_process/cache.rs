//! The compile cache with the real compiler: cold, damaged, killed, without a place.

use crate::{computing, gpu, passes, want};
use std::collections::BTreeMap;
use std::fs;
use std::path::Path;
use std::process::Child;
use std::time::{Duration, Instant};
use tempfile::{TempDir, tempdir};

type Files = BTreeMap<String, Vec<u8>>;

/// The kernels in a folder. The compiler is deterministic: they are the same in every folder.
fn kernels(folder: &Path) -> Files {
    let entries = fs::read_dir(folder).into_iter().flatten().map(|entry| entry.expect("an entry"));
    let named = entries.map(|entry| (entry.file_name().into_string().expect("text"), entry.path()));
    let kernels = named.filter(|(name, _)| name.ends_with(".cubin"));
    kernels.map(|(name, path)| (name, fs::read(path).expect("a file"))).collect()
}

/// A folder that one process has filled, its files, and how long that took.
fn warm(bits: &str) -> (TempDir, Files, Duration) {
    let (folder, start) = (tempdir().expect("a folder"), Instant::now());
    passes(computing(folder.path().as_os_str(), bits));
    let files = kernels(folder.path());
    assert!(!files.is_empty());
    (folder, files, start.elapsed())
}

#[test]
fn cold_processes_at_once() {
    let Some(_alone) = gpu() else { return };
    let bits = want();
    let (_folder, files, _) = warm(&bits);
    let folder = tempdir().expect("a folder");
    let place = folder.path().join("new");
    let mut children: Vec<Child> = (0..20).map(|_| computing(place.as_os_str(), &bits)).collect();
    children.iter_mut().for_each(|child| drop(child.stdin.take()));
    children.into_iter().for_each(|child| drop(passes(child)));
    assert!(kernels(&place) == files, "a kernel is not whole");
    assert_eq!(fs::read_dir(place).expect("a folder").count(), files.len(), "an unfinished file");
}

type Damage = fn(&mut Vec<u8>);

/// Each is done to every file.
const DAMAGES: [(&str, Damage); 17] = [
    ("emptied", |file| file.clear()),
    ("cut to a byte", |file| file.truncate(1)),
    ("cut within the seal", |file| file.truncate(31)),
    ("cut to the seal", |file| file.truncate(32)),
    ("cut to half", |file| file.truncate(file.len() / 2)),
    ("cut by a byte", |file| file.truncate(file.len() - 1)),
    ("first bit flipped", |file| file[0] ^= 1),
    ("last bit of the seal flipped", |file| file[31] ^= 128),
    ("first bit of the code flipped", |file| file[32] ^= 1),
    ("a bit in the middle flipped", |file| *file.iter_mut().nth_back(1000).expect("longer") ^= 16),
    ("last bit flipped", |file| *file.last_mut().expect("longer") ^= 128),
    ("a byte appended", |file| file.push(0)),
    ("twice over", |file| file.extend(file.clone())),
    ("a page of zeros within", |file| file[1000..2000].fill(0)),
    ("all zeros", |file| file.fill(0)),
    ("without its seal", |file| drop(file.drain(..32))),
    ("text", |file| *file = b"of another program\n".repeat(100)),
];

#[test]
fn damaged_files_are_compiled_anew() {
    let Some(_alone) = gpu() else { return };
    let bits = want();
    let (folder, files, _) = warm(&bits);
    let recovers = |what: &str| {
        assert!(kernels(folder.path()) != files, "{what}: no damage");
        passes(computing(folder.path().as_os_str(), &bits));
        assert!(kernels(folder.path()) == files, "{what}: not compiled anew");
    };
    for (what, damage) in DAMAGES {
        for (name, file) in &files {
            let mut file = file.clone();
            damage(&mut file);
            fs::write(folder.path().join(name), file).expect("written");
        }
        recovers(what);
    }
    for (name, other) in files.keys().zip(files.values().rev()) {
        fs::write(folder.path().join(name), other).expect("written");
    }
    recovers("swapped");
    for name in files.keys() {
        fs::remove_file(folder.path().join(name)).expect("removed");
    }
    recovers("removed");
    for name in files.keys() {
        let file = fs::File::create(folder.path().join(name)).expect("a file");
        file.set_len(65 << 20).expect("a large file");
    }
    recovers("65 MiB of a hole");
}

#[test]
fn killed_while_compiling() {
    let Some(_alone) = gpu() else { return };
    let bits = want();
    let (_folder, files, cold) = warm(&bits);
    let folder = tempdir().expect("a folder");
    let mut found = Vec::new();
    for n in 1..=20 {
        let mut child = computing(folder.path().as_os_str(), &bits);
        drop(child.stdin.take());
        std::thread::sleep(cold * n / 20);
        child.kill().expect("killed");
        child.wait().expect("it ends");
        let kept = kernels(folder.path());
        found.push(kept.len());
        for (name, file) in kept {
            assert!(files.get(&name) == Some(&file), "{name} is not whole");
            // The next has to compile it too.
            fs::remove_file(folder.path().join(name)).expect("removed");
        }
    }
    println!("killed at 20 times within {cold:?}, with so many kernels compiled: {found:?}");
    passes(computing(folder.path().as_os_str(), &bits));
    assert!(kernels(folder.path()) == files, "not compiled anew");
}

#[test]
fn without_a_place_it_computes() {
    let Some(_alone) = gpu() else { return };
    let (bits, folder) = (want(), tempdir().expect("a folder"));
    let file = folder.path().join("file");
    fs::write(&file, "no folder").expect("written");
    for place in [file.as_path(), &file.join("below"), Path::new("/proc/abreast")] {
        passes(computing(place.as_os_str(), &bits));
    }
    assert_eq!(fs::read(file).expect("still there"), b"no folder");
}
