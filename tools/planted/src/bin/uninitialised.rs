//! Decides by a byte that nobody wrote.

fn main() {
    let bytes = Vec::<u8>::with_capacity(64);
    let first = std::hint::black_box(bytes.as_ptr());
    // SAFETY: none, on purpose.
    println!("{}", if unsafe { *first.add(3) } > 7 { "large" } else { "small" });
}
