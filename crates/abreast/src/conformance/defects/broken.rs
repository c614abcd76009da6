//! The CPU backend with a defect.

use super::Defect::{self, *};
use crate::backend::cpu::{Cpu, CpuOptions};
use crate::backend::{Allocation, Backend, Immediate, Recording, Run};
use crate::dims::status;
use crate::ops::Op;
use crate::{
    Checked, Compress, ConvertState, DType, DeviceId, Error, GatherRows, IndexScores, Limits, Result,
    SelectKeys, SparseAttention, TopK, View, bf16,
};
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering::Relaxed};

pub(super) struct Broken {
    pub(super) inner: Cpu,
    defect: Option<Defect>,
    calls: AtomicUsize,
    widest: AtomicUsize,
}

impl Broken {
    pub(super) fn new(defect: Option<Defect>) -> Result<Broken> {
        let inner = Cpu::open(CpuOptions::default())?;
        Ok(Broken { inner, defect, calls: AtomicUsize::new(0), widest: AtomicUsize::new(0) })
    }

    pub(super) fn has(&self, defect: Defect) -> bool {
        self.defect == Some(defect)
    }
}

/// Another value of nearly the same size.
fn flip(x: &mut bf16) {
    *x = bf16::from_bits(x.to_bits() ^ 1);
}

impl Backend for Broken {
    fn id(&self) -> DeviceId {
        self.inner.id()
    }

    fn describe(&self) -> String {
        format!("{}, broken: {:?}", self.inner.describe(), self.defect)
    }

    fn allocate(&self, bytes: usize, what: &'static str) -> Result<Box<dyn Allocation>> {
        self.inner.allocate(bytes, what)
    }

    fn upload(&self, from: &[u8], to: *mut u8) -> Result<()> {
        self.inner.upload(from, to)
    }

    fn download(&self, from: *const u8, to: &mut [u8]) -> Result<()> {
        let cut = to.len() - usize::from(self.has(LastByteNotRead) && !to.is_empty());
        self.inner.download(from, &mut to[..cut])
    }

    fn synchronize(&self) -> Result<()> {
        self.inner.synchronize()
    }

    fn record(self: Arc<Self>, _limits: Limits) -> Result<Box<dyn Recording>> {
        Ok(Box::new(Immediate(self)))
    }
}

impl Run for Broken {
    fn sparse_attention(&self, mut op: Checked<SparseAttention<'_>>) -> Result<()> {
        let args = &mut *op;
        let (n, [_, heads, dim]) = (args.rows.len(), args.q.shape());
        if self.has(RowsRefused) && n > 64 {
            let what = "more than 64 rows";
            return Err(Error::OutOfMemory { device: self.id(), what, bytes: 0 });
        }
        let lists: Vec<Vec<i32>> = args
            .rows
            .iter()
            .map(|row| self.list(row.indices.as_slice().unwrap(), row.kv.shape()[0]))
            .collect();
        let mut rows = args.rows.to_vec();
        for (row, list) in rows.iter_mut().zip(&lists) {
            row.indices = View::from(&list[..]);
        }
        if self.has(NeighboursCache) && n > 1 {
            rows[0].kv = rows[n - 1].kv;
        }
        if self.has(LastRowSkipped) && n > 16 {
            rows.pop();
        }
        if self.has(NoWidthLeftAlone) {
            rows.retain(|row| !row.indices.is_empty());
        }
        let sinks = args.sinks.filter(|_| !self.has(SinkDropped));
        let status = args.status.as_mut().map(|status| status.reborrow().slice(0..rows.len()));
        let out = args.out.reborrow();
        let call = SparseAttention { sinks, rows: &rows, out, status, ..*args };
        self.inner.sparse_attention(call.check(DeviceId::CPU)?)?;

        let size = heads * dim;
        let (call, widest) =
            (self.calls.fetch_add(1, Relaxed), lists.iter().map(Vec::len).max().unwrap_or(0));
        let stale = self.widest.fetch_max(widest, Relaxed) > widest;
        let words: &mut [u32] =
            args.status.as_mut().and_then(|status| status.as_slice_mut()).unwrap_or_default();
        let past = args.out.as_mut_ptr().wrapping_add(args.out.len());
        let named: Vec<usize> = args.rows.iter().map(|row| row.out).collect();
        let out = args.out.as_slice_mut().unwrap();
        let bits = |yes: bool, out: &mut [bf16]| {
            if yes {
                flip(&mut out[named[0] * size]);
            }
        };
        bits(self.has(BitOfManyRows) && n > 8, out);
        bits(self.has(EverySeventhCall) && n > 1 && call % 7 == 6, out);
        bits(self.has(StaleScratch) && n > 0 && stale, out);
        bits(self.has(OrderOfRows) && n > 1 && lists[0].len() < lists[1].len(), out);
        if self.has(OnePastTheEnd) {
            // SAFETY: the suite keeps a red zone there.
            unsafe { *past = bf16::ONE };
        }
        if let (true, Some(free)) =
            (self.has(UnnamedRowWritten), (0..out.len() / size).find(|r| !named.contains(r)))
        {
            out[free * size] = bf16::ONE;
        }
        if self.has(DamageSpreads) && words.iter().any(|&word| word != 0) {
            out[named[0] * size..(named[0] + 1) * size].fill(bf16::ZERO);
        }
        if self.has(HeadsBeyond64) && heads > 64 {
            named.iter().for_each(|r| out.copy_within(r * size..r * size + dim, r * size + 64 * dim));
        }
        if self.has(OverflowIsInf) {
            for (r, _) in named.iter().zip(&*words).filter(|(_, word)| **word & status::OVERFLOW != 0) {
                out[r * size..(r + 1) * size]
                    .iter_mut()
                    .filter(|x| **x == bf16::ZERO)
                    .for_each(|x| *x = bf16::NAN);
            }
        }
        if self.has(StatusLost) {
            words.fill(0);
        }
        Ok(())
    }

    fn index_scores(&self, op: Checked<IndexScores<'_>>) -> Result<()> {
        self.broken_scores(op)
    }

    fn top_k(&self, op: Checked<TopK<'_>>) -> Result<()> {
        self.broken_selection(op)
    }

    fn select_keys(&self, mut op: Checked<SelectKeys<'_>>) -> Result<()> {
        let args = &mut *op;
        let mut rows = args.rows.to_vec();
        if self.has(SharedScoreScratch) && rows.len() > 8 {
            // The ninth row finds the scores of the first.
            let first = rows[0];
            (rows[8].query, rows[8].keys, rows[8].start_pos) = (first.query, first.keys, first.start_pos);
        }
        let status = args.status.as_mut().map(|status| status.reborrow());
        let call = SelectKeys { rows: &rows, out: args.out.reborrow(), status, ..*args };
        self.inner.select_keys(call.check(DeviceId::CPU)?)
    }

    fn compress(&self, op: Checked<Compress<'_, '_>>) -> Result<()> {
        self.broken_compress(op)
    }

    fn convert_state(&self, op: Checked<ConvertState<'_, '_>>) -> Result<()> {
        self.broken_convert(op)
    }

    fn gather_rows(&self, mut op: Checked<GatherRows<'_>>) -> Result<()> {
        let args = &mut *op;
        let ([n, _], dtype, out) = (args.out.shape(), args.out.dtype(), args.out.as_mut_ptr());
        let mut rows = args.rows.to_vec();
        if self.has(GatherLastIsFirst) && n > 4 {
            rows[n - 1] = rows[0];
        }
        let len: usize = args.out.shape().iter().product();
        // SAFETY: the memory of the call's own output, for the time of the call.
        let whole = |out: *mut u8| unsafe { std::slice::from_raw_parts_mut(out, len * dtype.size()) };
        let shape = args.out.shape();
        fn typed<'a, T: crate::Element>(bytes: &'a mut [u8], shape: [usize; 2]) -> crate::AnyViewMut<'a, 2> {
            crate::ViewMut::new(bytemuck::cast_slice_mut::<u8, T>(bytes), shape).unwrap().into()
        }
        let view = match dtype {
            DType::U8 => typed::<u8>(whole(out), shape),
            DType::I8 => typed::<i8>(whole(out), shape),
            DType::Bf16 => typed::<bf16>(whole(out), shape),
            DType::F16 => typed::<crate::f16>(whole(out), shape),
            DType::F32 => typed::<f32>(whole(out), shape),
            DType::I32 => typed::<i32>(whole(out), shape),
            DType::F64 => typed::<f64>(whole(out), shape),
            _ => typed::<i64>(whole(out), shape),
        };
        self.inner.gather_rows(GatherRows { rows: &rows, out: view }.check(DeviceId::CPU)?)?;
        if self.has(NanPayloadLost) && dtype == DType::F32 {
            let floats: &mut [f32] = bytemuck::cast_slice_mut(whole(out));
            floats.iter_mut().filter(|x| x.is_nan()).for_each(|x| *x = f32::NAN);
        }
        Ok(())
    }
}

impl Broken {
    /// An index list as a broken kernel sees it.
    fn list(&self, indices: &[i32], kv_len: usize) -> Vec<i32> {
        let mut list = indices.to_vec();
        if self.has(BadIndexIsZero) && kv_len > 0 {
            list.iter_mut().filter(|i| **i < -1 || **i >= kv_len as i32).for_each(|i| *i = 0);
        }
        if self.has(RepeatCountedOnce) {
            for j in 1..list.len() {
                list[j] = if list[..j].contains(&list[j]) { -1 } else { list[j] };
            }
        }
        if self.has(LeadingSkips) && list.len() >= 32 && list[..32].iter().all(|&i| i == -1) {
            list.fill(-1);
        }
        list
    }
}
