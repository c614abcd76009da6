//! Adds to one number from two threads at once.

static mut SUM: u64 = 0;

fn main() {
    let add = || {
        for _ in 0..1000 {
            // SAFETY: none, on purpose.
            unsafe { *(&raw mut SUM) = std::hint::black_box(*(&raw const SUM)) + 1 };
        }
    };
    let other = std::thread::spawn(add);
    add();
    other.join().expect("it only adds");
}
