//! Random arguments, many of them bad: a call works or names the argument that it does not like, and never panics.

use abreast::{
    AttentionRow, Compress, CompressRow, ConvertState, ConvertStateRow, Device, Element, Emit, Error,
    GatherRow, GatherRows, IndexScores, IndexScoresRow, Limits, Method, Result, SelectKeys, SelectKeysRow,
    SparseAttention, StateLayout, TopK, TopKRow, View, ViewMut, bf16,
};
use proptest::option::weighted;
use proptest::prelude::*;
use std::sync::LazyLock;

static DEVICE: LazyLock<Device> = LazyLock::new(|| Device::cpu().unwrap());

/// Most elements of a view.
const MOST: usize = 1 << 12;

/// Any shape that is small enough; huge sizes only beside a size of 0.
fn shape<const N: usize>() -> impl Strategy<Value = [usize; N]> {
    let sizes = [0, 1, 2, 3, 5, 8, 31, 32, 33, 64, 128, 129, 1 << 20, 1 << 40, usize::MAX - 31, usize::MAX];
    let size = proptest::sample::select(sizes.to_vec());
    proptest::array::uniform(size).prop_map(|mut shape: [usize; N]| {
        let size = |shape: &[usize; N]| shape.iter().try_fold(1usize, |all, &n| all.checked_mul(n));
        while size(&shape).is_none_or(|size| size > MOST) {
            *shape.iter_mut().max().expect("no shape is empty") /= 3;
        }
        shape
    })
}

/// Seldom another shape than the right one.
fn other<const N: usize>() -> impl Strategy<Value = Option<[usize; N]>> {
    weighted(0.07, shape())
}

/// Small numbers, and seldom those at the limits.
fn number() -> impl Strategy<Value = usize> {
    prop_oneof![12 => 0usize..3, 1 => Just(usize::MAX), 1 => Just(1 << 32), 1 => 0usize..100]
}

fn position() -> impl Strategy<Value = u32> {
    prop_oneof![8 => 0u32..8, 1 => Just(u32::MAX), 1 => Just(u32::MAX - 1), 1 => any::<u32>()]
}

fn scalar() -> impl Strategy<Value = f32> {
    prop_oneof![8 => 0.01f32..2.0, 1 => any::<f32>()]
}

/// Zeros under a shape.
struct Zeros<T, const N: usize>(Vec<T>, [usize; N]);

impl<T: Element, const N: usize> Zeros<T, N> {
    fn new(right: [usize; N], other: Option<[usize; N]>) -> Self {
        let shape = other.unwrap_or(right);
        Zeros(vec![T::zeroed(); shape.iter().product()], shape)
    }

    fn view(&self) -> View<'_, T, N> {
        View::new(&self.0, self.1).unwrap()
    }

    fn view_mut(&mut self) -> ViewMut<'_, T, N> {
        ViewMut::new(&mut self.0, self.1).unwrap()
    }
}

fn clear(result: Result<()>) -> std::result::Result<(), TestCaseError> {
    match result {
        Ok(()) | Err(Error::Argument { .. }) => Ok(()),
        Err(e) => Err(TestCaseError::fail(e.to_string())),
    }
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(2000))]

    #[test]
    fn sparse_attention(
        sizes in (1usize..4, 1usize..3), q in other(), sinks in weighted(0.8, other()), scale in scalar(),
        rows in proptest::collection::vec((number(), number(), other(), other()), 0..4),
        out in other(), status in weighted(0.8, other()), index: i32,
    ) {
        let (heads, dim) = (sizes.0, 32 * sizes.1);
        let q = Zeros::new([3, heads, dim], q);
        let sinks = sinks.map(|shape| Zeros::new([heads], shape));
        type Memory = (Zeros<bf16, 2>, Zeros<i32, 1>);
        let mut memory: Vec<Memory> =
            rows.iter().map(|row| (Zeros::new([4, dim], row.2), Zeros::new([5], row.3))).collect();
        memory.iter_mut().for_each(|(_, list)| list.0.iter_mut().skip(3).for_each(|i| *i = index));
        let rows: Vec<AttentionRow<'_>> = rows.iter().zip(&memory).map(|(row, memory)| AttentionRow {
            query: row.0, out: row.1, kv: memory.0.view(), indices: memory.1.view(),
        }).collect();
        let mut out = Zeros::new([3, heads, dim], out);
        let mut status = status.map(|shape| Zeros::new([rows.len()], shape));
        clear(DEVICE.sparse_attention(SparseAttention {
            q: q.view(), sinks: sinks.as_ref().map(|sinks| sinks.view()), scale, method: Method::Reference,
            rows: &rows, out: out.view_mut(), status: status.as_mut().map(|status| status.view_mut()),
        }))?;
    }

    #[test]
    fn index_scores_and_select_keys(
        sizes in (1usize..4, 1usize..3), q in other(), weights in other(), ratio in 0u32..4,
        rows in proptest::collection::vec((number(), position(), other(), number(), any::<i32>()), 0..4),
        k in number(), out in other(), status in weighted(0.8, other()),
    ) {
        let (heads, dim) = (sizes.0, 32 * sizes.1);
        let q = Zeros::new([3, heads, dim], q);
        let weights = Zeros::new([3, heads], weights);
        let keys: Vec<Zeros<bf16, 2>> = rows.iter().map(|row| Zeros::new([8, dim], row.2)).collect();
        let scores: Vec<IndexScoresRow<'_>> = rows.iter().zip(&keys).map(|(row, keys)| IndexScoresRow {
            query: row.0, start_pos: row.1, keys: keys.view(), out: row.3.wrapping_mul(9),
        }).collect();
        let selected: Vec<SelectKeysRow<'_>> = rows.iter().zip(&keys).map(|(row, keys)| SelectKeysRow {
            query: row.0, start_pos: row.1, keys: keys.view(), offset: row.4.max(-1), out: row.3.wrapping_mul(3),
        }).collect();
        let mut status = status.map(|shape| Zeros::new([rows.len()], shape));
        let mut floats = Zeros::new([40], out);
        clear(DEVICE.index_scores(IndexScores {
            q: q.view(), weights: weights.view(), ratio, method: Method::Reference, rows: &scores,
            out: floats.view_mut(), status: status.as_mut().map(|status| status.view_mut()),
        }))?;
        let mut out = Zeros::new([40], out);
        clear(DEVICE.select_keys(SelectKeys {
            q: q.view(), weights: weights.view(), ratio, method: Method::Reference, k, rows: &selected,
            out: out.view_mut(), status: status.as_mut().map(|status| status.view_mut()),
        }))?;
    }

    #[test]
    fn top_k(
        k in number(), rows in proptest::collection::vec((shape(), any::<i32>(), number()), 0..4),
        out in other(), status in weighted(0.8, other()),
    ) {
        let scores: Vec<Zeros<f32, 1>> = rows.iter().map(|row| Zeros::new(row.0, None)).collect();
        let rows: Vec<TopKRow<'_>> = rows.iter().zip(&scores).map(|(row, scores)| TopKRow {
            scores: scores.view(), offset: row.1.max(-1), out: row.2,
        }).collect();
        let mut out = Zeros::new([20], out);
        let mut status = status.map(|shape| Zeros::new([rows.len()], shape));
        let status = status.as_mut().map(|status| status.view_mut());
        clear(DEVICE.top_k(TopK { k, rows: &rows, out: out.view_mut(), status }))?;
    }

    #[test]
    fn compress(
        ratio in prop_oneof![6 => 0u32..6, 1 => any::<u32>()], dim in 1usize..3, ring: bool, blocks: bool,
        (ape, norm, out) in (other(), other(), other()), epsilon in scalar(),
        rows in proptest::collection::vec((position(), other(), other(), (other(), other()), number()), 0..3),
        status in weighted(0.8, other()),
    ) {
        let dim = 32 * dim;
        let features = abreast::dims::coff(ratio as usize) * dim;
        // A huge ratio comes with a bias of another shape: what the right one needs would be huge, too.
        let ape = Zeros::new([(ratio as usize).min(9), features], ape);
        let norm = Zeros::new([dim], norm);
        let state = [abreast::dims::window(ratio.min(9) as usize) + usize::from(ring), features];
        type Memory = [Zeros<f32, 2>; 4];
        let mut memory: Vec<Memory> = rows.iter().map(|row| [
            Zeros::new([4, features], row.1), Zeros::new([4, features], row.2),
            Zeros::new(state, row.3.0), Zeros::new(state, row.3.1),
        ]).collect();
        let mut entries: Vec<CompressRow<'_>> = rows.iter().zip(&mut memory).map(|(row, [kv, score, values, scores])| {
            CompressRow {
                start_pos: row.0, kv: kv.view(), score: score.view(), kv_state: values.view_mut(),
                score_state: scores.view_mut(), out: row.4.wrapping_mul(4),
            }
        }).collect();
        let mut out = Zeros::new([12, dim], out);
        let mut status = status.map(|shape| Zeros::new([rows.len()], shape));
        clear(DEVICE.compress(Compress {
            ratio, layout: if ring { StateLayout::Ring } else { StateLayout::Shifted },
            emit: if blocks { Emit::Blocks } else { Emit::EveryToken }, ape: ape.view(), norm: norm.view(), epsilon,
            rows: &mut entries, out: out.view_mut(), status: status.as_mut().map(|status| status.view_mut()),
        }))?;
    }

    #[test]
    fn convert_state(
        ratio in prop_oneof![6 => 0u32..6, 1 => any::<u32>()], dim in 1usize..3, from: bool, to: bool,
        rows in proptest::collection::vec((any::<u32>(), (other(), other()), (other(), other())), 0..3),
    ) {
        let features = abreast::dims::coff(ratio as usize) * 32 * dim;
        let state = |ring: bool| [abreast::dims::window(ratio.min(9) as usize) + usize::from(ring), features];
        let layout = |ring: bool| if ring { StateLayout::Ring } else { StateLayout::Shifted };
        type Memory = [Zeros<f32, 2>; 4];
        let mut memory: Vec<Memory> = rows.iter().map(|row| [
            Zeros::new(state(from), row.1.0), Zeros::new(state(from), row.1.1),
            Zeros::new(state(to), row.2.0), Zeros::new(state(to), row.2.1),
        ]).collect();
        let mut entries: Vec<ConvertStateRow<'_>> = rows.iter().zip(&mut memory).map(|(row, [kv, score, values, scores])| {
            ConvertStateRow {
                position: row.0, kv_from: kv.view(), score_from: score.view(), kv_to: values.view_mut(),
                score_to: scores.view_mut(),
            }
        }).collect();
        let (from, to) = (layout(from), layout(to));
        clear(DEVICE.convert_state(ConvertState { ratio, from, to, rows: &mut entries }))?;
    }

    #[test]
    fn gather_rows(n in number(), rows in proptest::collection::vec((other(), any::<bool>()), 0..5), out in other()) {
        let n = n.min(MOST);
        let floats: Vec<Zeros<f32, 1>> = rows.iter().map(|row| Zeros::new([n], row.0)).collect();
        let integers = Zeros::<i32, 1>::new([n], None);
        let rows: Vec<GatherRow<'_>> = rows.iter().zip(&floats).map(|(row, floats)| GatherRow {
            source: if row.1 || n % 7 > 0 { floats.view().into() } else { integers.view().into() },
        }).collect();
        let mut out = Zeros::<f32, 2>::new([rows.len(), n], out);
        clear(DEVICE.gather_rows(GatherRows { rows: &rows, out: out.view_mut().into() }))?;
    }
}

/// Views without elements may claim any size beside the 0: nothing is computed from it.
#[test]
fn shapes_without_elements() {
    for shape in [[0, usize::MAX, 2], [usize::MAX, 2, 0], [2, 0, usize::MAX]] {
        let view = View::<f32, 3>::new(&[], shape).unwrap();
        assert_eq!((view.len(), view.slice(0..shape[0]).shape()), (0, shape));
        let mut none = [];
        let (first, second) = ViewMut::<f32, 3>::new(&mut none, shape).unwrap().split_at(0);
        assert_eq!((first.len(), second.shape()), (0, shape));
    }
    assert!(View::<f32, 2>::new(&[], [usize::MAX, 2]).is_err());
}

#[test]
fn huge_sizes_without_elements() {
    // Refused for what they are, where they are more than is taken.
    let fine = |result: abreast::Result<()>, dim: usize| match result {
        Err(why) if dim > 1 << 20 => assert!(why.to_string().contains("q must be of"), "{why}"),
        result => assert_eq!((result, dim), (Ok(()), 1 << 20)),
    };
    for dim in [1 << 20, 1 << 40, usize::MAX - 31] {
        let q = View::<bf16, 3>::new(&[], [0, 128, dim]).unwrap();
        let out = ViewMut::new(&mut [], [0, 128, dim]).unwrap();
        let (method, sinks, status) = (Method::Reference, None, None);
        let call = SparseAttention { q, sinks, scale: 1.0, method, rows: &[], out, status };
        fine(DEVICE.sparse_attention(call), dim);
        let (q, weights) = (View::new(&[], [0, dim, 32]).unwrap(), View::new(&[], [0, dim]).unwrap());
        let out = ViewMut::from(&mut [][..]);
        let call = IndexScores { q, weights, ratio: 4, method, rows: &[], out, status: None };
        fine(DEVICE.index_scores(call), dim);
        let q = View::new(&[], [0, dim, 32]).unwrap();
        let out = ViewMut::from(&mut [][..]);
        let call = SelectKeys { q, weights, ratio: 4, method, k: 1, rows: &[], out, status: None };
        fine(DEVICE.select_keys(call), dim);
        let out = ViewMut::<f64, 2>::new(&mut [], [0, dim]).unwrap().into();
        assert_eq!(DEVICE.gather_rows(GatherRows { rows: &[], out }), Ok(()));
    }
}

/// Limits that no device has numbers for would make grids and scratch of other sizes than was asked for.
#[test]
fn limits_are_bounded() {
    let most = 1 << 30;
    let good = Limits { rows: most, width: most, keys: most };
    DEVICE.step(good).expect("a step");
    for (limits, name) in [
        (Limits { rows: most + 1, ..good }, "rows"),
        (Limits { width: 1 << 36, ..good }, "width"),
        (Limits { keys: usize::MAX, ..good }, "keys"),
    ] {
        let refused = DEVICE.step(limits).expect_err("a refusal").to_string();
        assert!(refused.contains(name) && refused.contains("at most 1073741824"), "{refused}");
    }
}
