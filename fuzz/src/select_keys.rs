use crate::index_scores::Inputs;
use crate::{Devices, Draw, Words, assert_bits, went_through};
use abreast::{Device, Method, SelectKeys, SelectKeysRow, ViewMut};

const STALE: i32 = -77;

pub(crate) fn check(draw: &mut Draw<'_>, devices: &Devices) -> arbitrary::Result<()> {
    let device = devices.joint(draw)?;
    let count = draw.upto(5)?;
    let inputs = Inputs::draw(draw, count)?;
    let k = draw.pick(&[1, 2, 7, 32, 100, 512, 2048, 0, 2049])?;
    let mut rows = Vec::new();
    for e in 0..count {
        let (keys, start_pos) = inputs.keys(draw)?;
        let offset = draw.pick(&[0, 128, i32::MAX - 80, i32::MAX, -1])?;
        rows.push(SelectKeysRow {
            query: draw.mostly(e)?,
            start_pos,
            keys,
            offset,
            out: draw.mostly(1 + e * k)?,
        });
    }

    let mut words = Words::draw(draw, count)?;
    let call = |device: &Device, rows: &[SelectKeysRow<'_>], out: &mut [i32], status: &mut [u32]| {
        device.select_keys(SelectKeys {
            q: inputs.q(),
            weights: inputs.weights(),
            ratio: inputs.ratio,
            method: Method::Reference,
            k,
            rows,
            out: ViewMut::from(out),
            status: Some(ViewMut::from(status)),
        })
    };
    let mut joint = vec![STALE; 2 + count * k];
    let result = call(device, &rows, &mut joint, &mut words.joint);
    let mut want = vec![STALE; joint.len()];
    if went_through(result) {
        for (e, row) in rows.iter().enumerate() {
            words.alone(e, |word| call(&devices.solo, &[*row], &mut want, word));
        }
    }
    assert_bits("select_keys", &joint, &want);
    words.check();
    Ok(())
}
