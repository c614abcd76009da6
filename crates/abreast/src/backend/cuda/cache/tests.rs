//! The cache with a fake compiler: nothing here needs a GPU.

mod processes;

use super::*;
use proptest::collection::vec;
use proptest::prelude::*;
use proptest::sample::Index;
use proptest::test_runner::TestRunner;
use std::cell::Cell;
use std::fs;
use tempfile::{TempDir, tempdir};

/// Machine code of a kernel: its own bytes, from 1 KiB for kernel 0 to 160 KiB for kernel 7.
fn code(kernel: u8) -> Vec<u8> {
    name(&[&[kernel]]).repeat(40 << kernel)
}

/// Asks for a kernel: its code, and whether it had to be compiled.
fn ask(cache: &Cache, kernel: u8) -> (Vec<u8>, bool) {
    let compiled = Cell::new(false);
    let make = || {
        compiled.set(true);
        Ok::<_, String>(code(kernel))
    };
    let loaded = cache.get_or(&[b"kernel", &[kernel]], make, |code| Ok(code.to_vec()));
    (loaded.expect("a fake compiler does not fail"), compiled.get())
}

fn path(cache: &Cache, kernel: u8) -> PathBuf {
    cache.path(&name(&[b"kernel", &[kernel]])).expect("a folder")
}

/// A cache of kernels 0 and 1.
fn warm() -> (TempDir, Cache) {
    let folder = tempdir().expect("a folder");
    let cache = Cache::at(folder.path());
    for kernel in [0, 1] {
        assert_eq!(ask(&cache, kernel), (code(kernel), true));
        assert_eq!(ask(&cache, kernel), (code(kernel), false));
    }
    (folder, cache)
}

/// The names of a folder's files.
fn names(folder: &Path) -> Vec<String> {
    let entries = fs::read_dir(folder).expect("a folder").map(|entry| entry.expect("an entry").file_name());
    entries.map(|name| name.to_string_lossy().into_owned()).collect()
}

/// What may become of a file.
#[derive(Debug, Clone)]
enum Damage {
    Empty,
    Cut(Index),
    Flip(Index),
    Overwrite(Index, Vec<u8>),
    Append(Vec<u8>),
    Foreign(Vec<u8>),
    Swap,
}

fn damage() -> impl Strategy<Value = Damage> {
    let bytes = || vec(any::<u8>(), 1..100);
    prop_oneof![
        1 => Just(Damage::Empty),
        4 => any::<Index>().prop_map(Damage::Cut),
        4 => any::<Index>().prop_map(Damage::Flip),
        4 => (any::<Index>(), vec(1..=255u8, 1..100)).prop_map(|(at, bytes)| Damage::Overwrite(at, bytes)),
        2 => bytes().prop_map(Damage::Append),
        2 => bytes().prop_map(Damage::Foreign),
        1 => Just(Damage::Swap),
    ]
}

impl Damage {
    fn apply(self, mut file: Vec<u8>, other: Vec<u8>) -> Vec<u8> {
        match self {
            Damage::Empty => file.clear(),
            Damage::Cut(at) => file.truncate(at.index(file.len())),
            Damage::Flip(at) => {
                let bit = at.index(8 * file.len());
                file[bit / 8] ^= 1 << (bit % 8);
            }
            Damage::Overwrite(at, bytes) => {
                let at = at.index(file.len());
                file[at..].iter_mut().zip(bytes).for_each(|(byte, other)| *byte ^= other);
            }
            Damage::Append(bytes) => file.extend(bytes),
            Damage::Foreign(bytes) => file = bytes,
            Damage::Swap => file = other,
        }
        file
    }
}

#[test]
fn a_damaged_file_is_compiled_anew() {
    let (_folder, cache) = warm();
    let files = [0, 1].map(|kernel| fs::read(path(&cache, kernel)).expect("stored"));
    let mut runner = TestRunner::new(ProptestConfig::with_cases(2_000));
    let ran = runner.run(&damage(), |damage| {
        let damaged = damage.apply(files[0].clone(), files[1].clone());
        prop_assert_ne!(&damaged, &files[0]);
        fs::write(path(&cache, 0), damaged).expect("written");
        prop_assert_eq!(ask(&cache, 0), (code(0), true));
        prop_assert_eq!(&fs::read(path(&cache, 0)).expect("stored"), &files[0]);
        prop_assert_eq!(ask(&cache, 0), (code(0), false));
        prop_assert_eq!(ask(&cache, 1), (code(1), false));
        Ok(())
    });
    ran.unwrap_or_else(|why| panic!("{why}"));
}

#[test]
fn a_file_that_is_too_large_is_not_read() {
    let (_folder, cache) = warm();
    // Even one that is whole: nothing but its size speaks against it.
    let name = name(&[b"kernel", &[0]]);
    cache.store(&name, &vec![0; MOST_BYTES as usize]).expect("stored");
    assert_eq!(ask(&cache, 0), (code(0), true));
    // A hole as large as a disk.
    fs::File::create(path(&cache, 0)).and_then(|file| file.set_len(1 << 40)).expect("a large file");
    assert_eq!([ask(&cache, 0), ask(&cache, 0)], [(code(0), true), (code(0), false)]);
}

#[cfg(unix)]
#[test]
fn what_is_no_file_is_not_opened() {
    let (_folder, cache) = warm();
    fs::remove_file(path(&cache, 0)).expect("removed");
    let made = std::process::Command::new("mkfifo").arg(path(&cache, 0)).status().expect("mkfifo");
    assert!(made.success());
    assert_eq!(ask(&cache, 0), (code(0), true));

    fs::remove_file(path(&cache, 1)).expect("removed");
    std::os::unix::fs::symlink("/dev/zero", path(&cache, 1)).expect("a link");
    assert_eq!(ask(&cache, 1), (code(1), true));

    fs::create_dir_all(path(&cache, 2).join("folder")).expect("a folder");
    // Nothing can be renamed to a folder's name: it is compiled each time.
    assert_eq!([ask(&cache, 2), ask(&cache, 2)], [(code(2), true), (code(2), true)]);
    assert_eq!([ask(&cache, 0), ask(&cache, 1)], [(code(0), false), (code(1), false)]);
    assert_eq!(names(&cache.folder.expect("a folder")).len(), 3, "nothing unfinished is left");
}

#[test]
fn a_file_that_is_refused_is_replaced_once() {
    let (_folder, cache) = warm();
    let key: [&[u8]; 2] = [b"kernel", &[0]];
    // Whole, but nothing that the driver takes.
    cache.store(&name(&key), b"of another driver").expect("stored");
    let takes = |bytes: &[u8]| if bytes == code(0) { Ok(()) } else { Err("refused") };
    let compiled = Cell::new(0);
    let make = |bytes: Vec<u8>| {
        compiled.set(compiled.get() + 1);
        Ok(bytes)
    };
    assert_eq!(cache.get_or(&key, || make(code(0)), takes), Ok(()));
    assert_eq!(cache.get_or(&key, || make(code(0)), takes), Ok(()));
    assert_eq!(compiled.get(), 1);
    // Where the compiler's own is refused too, that is the error, and the refused code is not kept.
    let nothing = |_: &[u8]| Err::<(), _>("all is refused");
    assert_eq!(cache.get_or(&key, || make(vec![7]), nothing), Err("all is refused"));
    assert_eq!(compiled.get(), 2);
    assert_eq!(ask(&cache, 0), (code(0), false));
}

#[test]
fn without_a_folder_every_call_compiles() {
    let folder = tempdir().expect("a folder");
    let file = folder.path().join("file");
    fs::write(&file, "no folder").expect("written");
    let places = [None, Some(file.clone()), Some(file.join("below")), Some("/proc/abreast".into())];
    for cache in places.map(|folder| Cache { folder }) {
        assert_eq!([ask(&cache, 0), ask(&cache, 0)], [(code(0), true), (code(0), true)]);
    }
    assert_eq!(fs::read(&file).expect("still there"), b"no folder");
}

#[test]
fn a_compiler_that_fails_leaves_nothing() {
    let folder = tempdir().expect("a folder");
    let cache = Cache::at(&folder.path().join("new"));
    let failed = cache.get_or(&[b"kernel"], || Err::<Vec<u8>, _>("no compiler"), |_| Ok(()));
    assert_eq!(failed, Err("no compiler"));
    assert_eq!(names(folder.path()), [] as [String; 0]);
}

#[test]
fn abandoned_files_are_swept() {
    let (folder, cache) = warm();
    let touch = |name: &str, age: Duration| {
        let file = fs::File::create(folder.path().join(name)).expect("a file");
        file.set_modified(std::time::SystemTime::now() - age).expect("a time");
    };
    touch(".abreast-old", 2 * ABANDONED);
    touch(".abreast-being-written", ABANDONED / 2);
    touch("of-somebody-else", 2 * ABANDONED);
    ask(&cache, 2);
    let mut left: Vec<String> = names(folder.path()).into_iter().filter(|n| !n.ends_with(".cubin")).collect();
    left.sort();
    assert_eq!(left, [".abreast-being-written", "of-somebody-else"]);
}

#[test]
fn every_part_of_a_key_counts() {
    let keys: [&[&[u8]]; 5] = [&[b"ab", b"c"], &[b"a", b"bc"], &[b"abc"], &[b"abc", b""], &[b"", b"abc"]];
    let names: std::collections::HashSet<Hash> = keys.into_iter().map(name).collect();
    assert_eq!(names.len(), keys.len());
}
