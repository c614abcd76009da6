use crate::{Devices, Draw, HUGE, Words, assert_bits, went_through};
use abreast::{AttentionRow, Device, Method, SparseAttention, View, ViewMut, bf16};

const STALE: bf16 = bf16::from_bits(0xabcd);

pub(crate) fn check(draw: &mut Draw<'_>, devices: &Devices) -> arbitrary::Result<()> {
    let device = devices.joint(draw)?;
    let count = draw.upto(5)?;
    let heads: usize = draw.pick(&[1, 2, 3, 5, 16, 17, 128, 0, 129])?;
    let dim = draw.pick(&[32, 64, 96, 512, 0, 33, HUGE])?;
    let row = heads.checked_mul(dim);
    let (queries, outputs) = (draw.rows(count, row)?, draw.rows(count + 1, row)?);
    let row = row.unwrap_or(0);
    let q = draw.bf16s(queries * row);
    let wanted = draw.flag()?;
    let sinks = draw.length(heads)?;
    let sinks = draw.f32s(sinks);
    let scale = draw.pick(&[0.125, 1.0, -1.0, 0.0, f32::MAX, f32::NAN, f32::INFINITY])?;

    // Fewer caches than rows: some share one.
    let mut caches = Vec::new();
    for _ in 0..2 {
        let (len, width) = (draw.upto(40)?, draw.length(dim)?);
        let len = if width < 1 << 20 { len } else { 0 };
        caches.push((draw.bf16s(len * width), [len, width]));
    }
    let mut lists = Vec::new();
    for _ in 0..count {
        let (cache, width) = (draw.below(caches.len())?, draw.upto(70)?);
        lists.push((cache, draw.indices(width, caches[cache].1[0])));
    }
    let mut rows = Vec::new();
    for (e, (cache, indices)) in lists.iter().enumerate() {
        let (kv, shape) = &caches[*cache];
        rows.push(AttentionRow {
            query: draw.mostly(e)?,
            out: draw.mostly(count - e)?,
            kv: View::new(kv, *shape).expect("a cache of its shape"),
            indices: View::from(&indices[..]),
        });
    }

    let mut words = Words::draw(draw, count)?;
    let status = draw.flag()?;
    let call = |device: &Device, rows: &[AttentionRow<'_>], out: &mut [bf16], status: Option<&mut [u32]>| {
        device.sparse_attention(SparseAttention {
            q: View::new(&q, [queries, heads, dim]).expect("queries of their shape"),
            sinks: wanted.then(|| View::from(&sinks[..])),
            scale,
            method: Method::Reference,
            rows,
            out: ViewMut::new(out, [outputs, heads, dim]).expect("an output of its shape"),
            status: status.map(ViewMut::from),
        })
    };
    let mut joint = vec![STALE; outputs * row];
    let result = call(device, &rows, &mut joint, status.then_some(&mut words.joint[..]));
    // What the rows should have left: nothing of a refused call, each row's own result else.
    let mut want = vec![STALE; joint.len()];
    if went_through(result) {
        for (e, row) in rows.iter().enumerate() {
            if status {
                words.alone(e, |word| call(&devices.solo, &[*row], &mut want, Some(word)));
            } else {
                call(&devices.solo, &[*row], &mut want, None).expect("a row of a legal call is legal");
            }
        }
    }
    assert_bits("sparse_attention", &joint, &want);
    words.check();
    Ok(())
}
