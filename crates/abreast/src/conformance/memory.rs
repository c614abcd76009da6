//! A device's memory: zeros are zeros, and what is written is read.

use super::Case;
use super::bits::{self, Finding, Part, Verdict};
use super::case::Rng;
use super::lab::Lab;
use crate::{Element, bf16, f16};

pub(super) fn cases() -> Vec<Case> {
    vec![
        Case::new("device/memory/f64".into(), memory::<f64>),
        Case::new("device/memory/f32".into(), memory::<f32>),
        Case::new("device/memory/bf16".into(), memory::<bf16>),
        Case::new("device/memory/f16".into(), memory::<f16>),
        Case::new("device/memory/i64".into(), memory::<i64>),
        Case::new("device/memory/i32".into(), memory::<i32>),
        Case::new("device/memory/u8".into(), memory::<u8>),
    ]
}

fn memory<T: Element>(lab: &mut Lab<'_>) -> Verdict {
    let rng = &mut Rng::new(40);
    for len in [0, 1, 2, 63, 1000, 100_001] {
        let mut data = vec![T::zeroed(); len];
        let mut buffer = lab.device.zeros::<T>(len)?;
        let read = |data: &[T]| vec![Part::of("buffer", data)];
        bits::same(0, "written", &read(&buffer.read()?), &read(&data))?;
        bytemuck::cast_slice_mut::<T, u8>(&mut data).iter_mut().for_each(|byte| *byte = rng.bits() as u8);
        buffer.write(&data)?;
        bits::same(0, "written", &read(&buffer.read()?), &read(&data))?;
        let uploaded = lab.device.upload(&data)?;
        bits::same(0, "written", &read(&uploaded.read()?), &read(&data))?;
        if uploaded.view().as_ptr() as usize & 63 != 0 {
            return Err(Finding::text("a buffer's address", "aligned to 64 bytes", "another"));
        }
    }
    Ok(())
}
