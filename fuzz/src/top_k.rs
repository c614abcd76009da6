use crate::{Devices, Draw, Words, assert_bits, went_through};
use abreast::{Device, TopK, TopKRow, View, ViewMut};

const STALE: i32 = -77;

pub(crate) fn check(draw: &mut Draw<'_>, devices: &Devices) -> arbitrary::Result<()> {
    let device = devices.joint(draw)?;
    let count = draw.upto(5)?;
    let k = draw.pick(&[1, 2, 7, 32, 100, 512, 2048, 0, 2049])?;
    let mut scores = Vec::new();
    for _ in 0..count {
        let n = draw.pick(&[0, 1, 2, 31, 33, 500, 3000])?;
        let mut row = draw.f32s(n);
        if draw.flag()? {
            // Many ties.
            row.iter_mut().for_each(|v| *v = v.round());
        }
        scores.push(row);
    }
    let mut rows = Vec::new();
    for (e, scores) in scores.iter().enumerate() {
        let offset = draw.pick(&[0, 128, i32::MAX - 3000, i32::MAX, -1])?;
        rows.push(TopKRow { scores: View::from(&scores[..]), offset, out: draw.mostly(1 + e * k)? });
    }

    let mut words = Words::draw(draw, count)?;
    let call = |device: &Device, rows: &[TopKRow<'_>], out: &mut [i32], status: &mut [u32]| {
        device.top_k(TopK { k, rows, out: ViewMut::from(out), status: Some(ViewMut::from(status)) })
    };
    let mut joint = vec![STALE; 2 + count * k];
    let result = call(device, &rows, &mut joint, &mut words.joint);
    let mut want = vec![STALE; joint.len()];
    if went_through(result) {
        for (e, row) in rows.iter().enumerate() {
            words.alone(e, |word| call(&devices.solo, &[*row], &mut want, word));
        }
    }
    assert_bits("top_k", &joint, &want);
    words.check();
    Ok(())
}
