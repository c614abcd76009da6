use crate::{Devices, Draw, HUGE, assert_bits, went_through};
use abreast::{AnyView, GatherRow, GatherRows, View, ViewMut};

const STALE: f32 = -77.0;

pub(crate) fn check(draw: &mut Draw<'_>, devices: &Devices) -> arbitrary::Result<()> {
    let device = devices.joint(draw)?;
    let (count, n) = (draw.upto(5)?, draw.pick(&[0, 1, 2, 31, 512, HUGE])?);
    let mut sources = Vec::new();
    for _ in 0..count {
        let n = draw.rows(n, Some(n))?;
        sources.push(draw.f32s(n));
    }
    let mut rows = Vec::new();
    for source in &sources {
        // Seldom another type of the same size: one of another meaning.
        let words: &[u32] = bytemuck::cast_slice(source);
        let other = draw.mostly(0)? != 0;
        let source =
            if other { AnyView::from(View::from(words)) } else { AnyView::from(View::from(&source[..])) };
        rows.push(GatherRow { source });
    }

    let shape = [draw.rows(count, Some(n))?, n];
    let mut out = vec![STALE; shape[0] * shape[1]];
    let view = ViewMut::new(&mut out, shape).expect("an output of its shape");
    let result = device.gather_rows(GatherRows { rows: &rows, out: view.into() });
    let want = if went_through(result) { sources.concat() } else { vec![STALE; out.len()] };
    assert_bits("gather_rows", &out, &want);
    Ok(())
}
