//! Reads one byte beyond an allocation.

fn main() {
    let bytes = vec![7u8; 64];
    let first = std::hint::black_box(bytes.as_ptr());
    // SAFETY: none, on purpose.
    println!("{}", unsafe { *first.add(64) });
}
