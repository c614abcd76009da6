//! Offsets beyond 2^31 and 2^32 bytes: memory that nobody touches is never there, so that a few pages are enough.
//!
//! On Linux only: elsewhere zeroed memory may be real memory. One test, so that the buffers do not add up.

#![cfg(all(target_os = "linux", target_pointer_width = "64"))]

use abreast::{
    AttentionRow, Buffer, Compress, CompressRow, ConvertState, ConvertStateRow, Device, Element, Emit, Error,
    GatherRow, GatherRows, IndexScores, IndexScoresRow, Method, SelectKeys, SelectKeysRow, SparseAttention,
    StateLayout, TopK, TopKRow, bf16,
};

const GIB: usize = 1 << 30;

/// Zeros, or `None` where this machine does not promise so much memory: said aloud, never silently.
fn zeros<T: Element>(device: &Device, len: usize) -> Option<Buffer<T>> {
    match device.zeros(len) {
        Ok(buffer) => Some(buffer),
        Err(Error::OutOfMemory { bytes, .. }) => {
            println!("not checked: this machine does not promise {bytes} bytes");
            None
        }
        Err(e) => panic!("{e}"),
    }
}

fn fill<T: Element>(buffer: &mut Buffer<T>, (start, len): (usize, usize), value: T) {
    buffer.write_at(start, &vec![value; len]).unwrap();
}

fn part<T: Element>(buffer: &Buffer<T>, start: usize, len: usize) -> Vec<T> {
    buffer.read_at(start..start + len).unwrap()
}

/// Bytes of this process that are in memory.
fn resident() -> usize {
    let statm = std::fs::read_to_string("/proc/self/statm").unwrap();
    statm.split(' ').nth(1).unwrap().parse::<usize>().unwrap() * 4096
}

type Check = fn(&Device) -> Option<()>;

#[test]
fn beyond_2_to_the_32() {
    let device = Device::cpu().unwrap();
    let before = resident();
    if let Some(untouched) = zeros::<u8>(&device, GIB) {
        assert!(resident() < before + GIB / 8, "memory that nobody touches is there: {untouched:?}");
    }
    check(&device);
}

#[cfg(feature = "cuda")]
#[test]
fn beyond_2_to_the_32_on_a_gpu() {
    match Device::open(abreast::Kind::Cuda) {
        Ok(device) => check(&device),
        Err(why) => println!("SKIPPED: {why}"),
    }
}

fn check(device: &Device) {
    let checks: [(&str, Check); 8] = [
        ("sparse_attention", sparse_attention),
        ("too_many_indices", too_many_indices),
        ("index_scores", index_scores),
        ("select_keys", select_keys),
        ("top_k", top_k),
        ("compress", compress),
        ("convert_state", convert_state),
        ("gather_rows", gather_rows),
    ];
    for (name, check) in checks {
        println!("{name}: {}", if check(device).is_some() { "checked" } else { "not checked" });
    }
}

/// Cache rows, a query and an output behind 2^32 bytes.
fn sparse_attention(device: &Device) -> Option<()> {
    const DIM: usize = 512;
    let rows = 4_500_000;
    let mut kv = zeros::<bf16>(device, rows * DIM)?;
    // Of 1,024 bytes each: the first beyond 2^31, the last before 2^32, the first beyond, the last of all.
    let picked = [7, 1 << 21, (1 << 22) - 1, 1 << 22, rows - 1];
    for (value, &row) in (1..).zip(&picked) {
        fill(&mut kv, (row * DIM, DIM), bf16::from_f32(value as f32));
    }
    let indices = device.upload(&picked.map(|row| row as i32)).unwrap();
    // 128 heads: 131,072 bytes a row.
    let (size, far) = (128 * DIM, 40_000);
    let (q, mut out) = (zeros::<bf16>(device, (far + 1) * size)?, zeros::<bf16>(device, (far + 1) * size)?);
    let row =
        AttentionRow { query: far, out: far, kv: kv.shaped([rows, DIM]).unwrap(), indices: indices.view() };
    let shape = [far + 1, 128, DIM];
    device
        .sparse_attention(SparseAttention {
            q: q.shaped(shape).unwrap(),
            sinks: None,
            scale: 1.0,
            method: Method::Reference,
            rows: &[row],
            out: out.shaped_mut(shape).unwrap(),
            status: None,
        })
        .unwrap();
    // Queries of zeros: the mean of 1 to 5.
    assert!(part(&out, far * size, size).iter().all(|&x| x == bf16::from_f32(3.0)));
    assert!(part(&out, 0, size).iter().all(|&x| x == bf16::ZERO));
    Some(())
}

/// Widths that 31 bits do not hold are refused: a kernel would take them for negative.
fn too_many_indices(device: &Device) -> Option<()> {
    let indices = zeros::<i32>(device, 1 << 31)?;
    let (q, mut out) = (zeros::<bf16>(device, 32)?, zeros::<bf16>(device, 32)?);
    let kv = q.shaped([1, 32]).unwrap();
    let refused = device.sparse_attention(SparseAttention {
        q: q.shaped([1, 1, 32]).unwrap(),
        sinks: None,
        scale: 1.0,
        method: Method::Reference,
        rows: &[AttentionRow { query: 0, out: 0, kv, indices: indices.view() }],
        out: out.shaped_mut([1, 1, 32]).unwrap(),
        status: None,
    });
    let refused = refused.unwrap_err().to_string();
    assert!(refused.contains("indices") && refused.contains("at most 1073741824"), "{refused}");
    Some(())
}

/// 17 million keys of 256 bytes, a few of which are not zero.
struct Keys {
    keys: Buffer<bf16>,
    picked: [usize; 4],
}

const KEYS: usize = 17_000_000;
const INDEX_DIM: usize = 128;

fn keys(device: &Device) -> Option<Keys> {
    let mut keys = zeros::<bf16>(device, KEYS * INDEX_DIM)?;
    let picked = [1 << 23, (1 << 24) - 1, 1 << 24, KEYS - 1];
    for (value, &key) in (1..).zip(&picked) {
        fill(&mut keys, (key * INDEX_DIM, INDEX_DIM), bf16::from_f32(value as f32));
    }
    Some(Keys { keys, picked })
}

fn index_scores(device: &Device) -> Option<()> {
    let Keys { keys, picked } = keys(device)?;
    // The scores' place starts behind 2^32 bytes.
    let start = (1 << 30) + 5;
    let mut out = zeros::<f32>(device, start + KEYS)?;
    let (q, weights) = (device.upload(&[bf16::ONE; INDEX_DIM]).unwrap(), device.upload(&[1f32]).unwrap());
    let keys = keys.shaped([KEYS, INDEX_DIM]).unwrap();
    device
        .index_scores(IndexScores {
            q: q.shaped([1, 1, INDEX_DIM]).unwrap(),
            weights: weights.shaped([1, 1]).unwrap(),
            ratio: 1,
            method: Method::Reference,
            rows: &[IndexScoresRow { query: 0, start_pos: KEYS as u32 - 1, keys, out: start }],
            out: out.view_mut(),
            status: None,
        })
        .unwrap();
    let scores = part(&out, start, KEYS);
    let found: Vec<usize> = (0..KEYS).filter(|&key| scores[key] != 0.0).collect();
    assert_eq!(found, picked);
    assert_eq!(picked.map(|key| scores[key]), [128.0, 256.0, 384.0, 512.0]);
    Some(())
}

fn select_keys(device: &Device) -> Option<()> {
    let Keys { keys, picked } = keys(device)?;
    let start = (1 << 30) + 5;
    let mut out = zeros::<i32>(device, start + 6)?;
    let (q, weights) = (device.upload(&[bf16::ONE; INDEX_DIM]).unwrap(), device.upload(&[1f32]).unwrap());
    let keys = keys.shaped([KEYS, INDEX_DIM]).unwrap();
    device
        .select_keys(SelectKeys {
            q: q.shaped([1, 1, INDEX_DIM]).unwrap(),
            weights: weights.shaped([1, 1]).unwrap(),
            ratio: 1,
            method: Method::Reference,
            k: 6,
            rows: &[SelectKeysRow { query: 0, start_pos: KEYS as u32 - 1, keys, offset: 1000, out: start }],
            out: out.view_mut(),
            status: None,
        })
        .unwrap();
    let mut want: Vec<i32> = picked.iter().rev().map(|&key| key as i32 + 1000).collect();
    want.extend([1000, 1001]);
    assert_eq!(part(&out, start, 6), want);
    Some(())
}

/// More than 2^30 scores, and slots behind 2^32 bytes.
fn top_k(device: &Device) -> Option<()> {
    let n = GIB + 100;
    let mut scores = zeros::<f32>(device, n)?;
    for (value, at) in [(3.0, n - 1), (5.0, GIB), (4.0, GIB - 1), (9.0, 1 << 29)] {
        fill(&mut scores, (at, 1), value);
    }
    let mut out = zeros::<i32>(device, n)?;
    let row = TopKRow { scores: scores.view(), offset: 7, out: GIB + 3 };
    device.top_k(TopK { k: 6, rows: &[row], out: out.view_mut(), status: None }).unwrap();
    let want = [1 << 29, GIB, GIB - 1, n - 1, 0, 1].map(|at| at as i32 + 7);
    assert_eq!(part(&out, GIB + 3, 6), want);
    Some(())
}

/// A ring of a million rows of 4,096 bytes, and outputs behind 2^32 bytes.
fn compress(device: &Device) -> Option<()> {
    const DIM: usize = 512;
    let (ring, outputs) = ((1 << 20) + 12, (1 << 22) + 3);
    let (mut kv_state, mut score_state) =
        (zeros::<f32>(device, ring * 2 * DIM)?, zeros::<f32>(device, ring * 2 * DIM)?);
    let mut out = zeros::<bf16>(device, outputs * DIM)?;
    // Positions whose state rows lie around 2^32 bytes; the window before them is fresh.
    let start = 1 << 20;
    fill(&mut score_state, ((start - 4) * 2 * DIM, 4 * 2 * DIM), f32::NEG_INFINITY);
    let (kv, score) =
        (device.upload(&[2f32; 4 * 2 * DIM]).unwrap(), device.zeros::<f32>(4 * 2 * DIM).unwrap());
    let (ape, norm) = (device.zeros::<f32>(4 * 2 * DIM).unwrap(), device.upload(&[3f32; DIM]).unwrap());
    let (tokens, state) = ([4, 2 * DIM], [ring, 2 * DIM]);
    let row = CompressRow {
        start_pos: start as u32,
        kv: kv.shaped(tokens).unwrap(),
        score: score.shaped(tokens).unwrap(),
        kv_state: kv_state.shaped_mut(state).unwrap(),
        score_state: score_state.shaped_mut(state).unwrap(),
        out: outputs - 1,
    };
    device
        .compress(Compress {
            ratio: 4,
            layout: StateLayout::Ring,
            emit: Emit::Blocks,
            ape: ape.shaped(tokens).unwrap(),
            norm: norm.view(),
            epsilon: 1e-6,
            rows: &mut [row],
            out: out.shaped_mut([outputs, DIM]).unwrap(),
            status: None,
        })
        .unwrap();
    // Values of 2 have a root mean square of 2.
    assert!(part(&out, (outputs - 1) * DIM, DIM).iter().all(|&x| x == bf16::from_f32(3.0)));
    assert!(part(&kv_state, start * 2 * DIM, 4 * 2 * DIM).iter().all(|&x| x == 2.0));
    assert!(part(&kv_state, 0, 4 * 2 * DIM).iter().all(|&x| x == 0.0));
    Some(())
}

/// From the far end of a large ring.
fn convert_state(device: &Device) -> Option<()> {
    const FEATURES: usize = 1024;
    let ring = (1 << 20) + 12;
    let (mut kv, mut score) =
        (zeros::<f32>(device, ring * FEATURES)?, zeros::<f32>(device, ring * FEATURES)?);
    let next = ring;
    for position in next - 8..next {
        fill(&mut kv, (position * FEATURES, FEATURES), position as f32);
        fill(&mut score, (position * FEATURES, FEATURES), 1.0);
    }
    let (mut kv_to, mut score_to) =
        (device.zeros::<f32>(8 * FEATURES).unwrap(), device.zeros::<f32>(8 * FEATURES).unwrap());
    let row = ConvertStateRow {
        position: next as u32,
        kv_from: kv.shaped([ring, FEATURES]).unwrap(),
        score_from: score.shaped([ring, FEATURES]).unwrap(),
        kv_to: kv_to.shaped_mut([8, FEATURES]).unwrap(),
        score_to: score_to.shaped_mut([8, FEATURES]).unwrap(),
    };
    let (from, to) = (StateLayout::Ring, StateLayout::Shifted);
    device.convert_state(ConvertState { ratio: 4, from, to, rows: &mut [row] }).unwrap();
    // A whole block has just ended: both halves hold it.
    let kv_to = kv_to.read().unwrap();
    let held: Vec<usize> = kv_to.chunks(FEATURES).map(|row| row[FEATURES - 1] as usize).collect();
    assert_eq!(held, [4, 3, 2, 1, 4, 3, 2, 1].map(|back| next - back));
    assert!(score_to.read().unwrap().iter().all(|&x| x == 1.0));
    Some(())
}

/// Rows behind 2^31 bytes; all of the output is written, so that more would cost real memory.
fn gather_rows(device: &Device) -> Option<()> {
    let n = GIB + 5;
    let mut source = zeros::<u8>(device, n)?;
    fill(&mut source, (n - 1, 1), 77);
    let few = device.upload(&[5u8]).unwrap();
    let mut out = zeros::<u8>(device, 2 * n + 1)?;
    let row = GatherRow { source: source.view().into() };
    let whole = out.view_mut().slice(0..2 * n).reshape([2, n]).unwrap();
    device.gather_rows(GatherRows { rows: &[row, row], out: whole.into() }).unwrap();
    assert_eq!([part(&out, n - 1, 1)[0], part(&out, 2 * n - 1, 1)[0]], [77, 77]);
    assert_eq!(part(&out, 2 * n, 1)[0], few.read().unwrap()[0] - 5);
    Some(())
}
