use crate::{Devices, Draw};
use abreast::{Error, View, ViewMut};

/// A view of any shape is one of its data's length or an error; so is what is reshaped from it.
pub(crate) fn check(draw: &mut Draw<'_>, devices: &Devices) -> arbitrary::Result<()> {
    let shape = [draw.upto(4)?, draw.mostly(3)?, draw.mostly(2)?];
    let other = [draw.mostly(6)?, draw.upto(8)?];
    let fits = |shape: &[usize], len| shape.iter().try_fold(1usize, |p, &n| p.checked_mul(n)) == Some(len);
    let mut data = draw.f32s(24);
    match View::new(&data, shape) {
        Ok(view) => {
            assert!(fits(&shape, 24));
            assert_eq!(view.reshape(other).is_ok(), fits(&other, 24));
        }
        Err(error) => assert!(matches!(error, Error::Argument { .. })),
    }
    assert_eq!(ViewMut::new(&mut data, shape).is_ok(), fits(&shape, 24));
    let buffer = devices.solo.zeros::<u64>(24).expect("a small buffer");
    assert_eq!(buffer.shaped(shape).is_ok(), fits(&shape, 24));
    assert!(matches!(devices.solo.zeros::<u64>(usize::MAX / 2), Err(Error::Argument { .. })));
    Ok(())
}
