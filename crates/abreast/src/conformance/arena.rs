//! Device memory with red zones: whatever is written or read beyond its place shows.

use super::bits::Fault;
use crate::{Buffer, Device, Element, Result, View, ViewMut};
use std::ops::Range;

/// Bytes of a red zone.
const ZONE_BYTES: usize = 256;

/// Several ranges of one buffer, each between two red zones.
pub(super) struct Arena<T> {
    name: &'static str,
    buffer: Buffer<T>,
    segments: Vec<Range<usize>>,
    zone: T,
}

/// The value whose bytes are all `byte`. 0xff makes floats NaN; 0x7f makes an index that no cache has.
pub(super) fn repeat<T: Element>(byte: u8) -> T {
    bytemuck::pod_read_unaligned(&vec![byte; size_of::<T>()])
}

impl<T: Element> Arena<T> {
    /// `parts` on the device, between red zones of `zone` bytes.
    pub(super) fn upload<'p>(
        device: &Device,
        name: &'static str,
        zone: u8,
        parts: impl IntoIterator<Item = &'p [T]>,
    ) -> Result<Self> {
        Self::upload_askew(device, (name, zone), 0, parts)
    }

    /// The same with red zones that are `skew` elements longer, so that parts start anywhere.
    pub(super) fn upload_askew<'p>(
        device: &Device,
        (name, zone): (&'static str, u8),
        skew: usize,
        parts: impl IntoIterator<Item = &'p [T]>,
    ) -> Result<Self> {
        let (gap, zone) = (ZONE_BYTES / size_of::<T>() + skew, repeat(zone));
        let mut image = vec![zone; gap];
        let mut segments = Vec::new();
        for part in parts {
            let start = image.len();
            image.extend_from_slice(part);
            segments.push(start..image.len());
            image.resize(image.len() + gap, zone);
        }
        Ok(Arena { name, buffer: device.upload(&image)?, segments, zone })
    }

    pub(super) fn view(&self, segment: usize) -> View<'_, T, 1> {
        self.buffer.view().slice(self.segments[segment].clone())
    }

    /// The segments of `wanted`, each named once, in that order, written.
    pub(super) fn views_mut(&mut self, wanted: &[usize]) -> Vec<ViewMut<'_, T, 1>> {
        let mut ascending: Vec<usize> = (0..wanted.len()).collect();
        ascending.sort_unstable_by_key(|&i| wanted[i]);
        let mut views: Vec<_> = wanted.iter().map(|_| None).collect();
        let (mut rest, mut passed) = (self.buffer.view_mut(), 0);
        for i in ascending {
            let segment = &self.segments[wanted[i]];
            assert!(segment.start >= passed, "a row is named once in a call");
            let (head, tail) = rest.split_at(segment.end - passed);
            views[i] = Some(head.slice(segment.start - passed..segment.end - passed));
            (rest, passed) = (tail, segment.end);
        }
        views.into_iter().flatten().collect()
    }

    /// The first segment, written.
    pub(super) fn view_mut(&mut self) -> ViewMut<'_, T, 1> {
        let segment = self.segments[0].clone();
        self.buffer.view_mut().slice(segment)
    }

    /// Overwrites all segments, and the red zones with what they were.
    pub(super) fn write<'p>(&mut self, parts: impl IntoIterator<Item = &'p [T]>) -> Result<()> {
        let mut image = vec![self.zone; self.buffer.len()];
        for (segment, part) in self.segments.iter().zip(parts) {
            image[segment.clone()].copy_from_slice(part);
        }
        self.buffer.write(&image)
    }

    /// Overwrites every element of every segment.
    pub(super) fn fill(&mut self, value: T) -> Result<()> {
        let mut image = vec![self.zone; self.buffer.len()];
        for segment in &self.segments {
            image[segment.clone()].fill(value);
        }
        self.buffer.write(&image)
    }

    /// The segments' contents, if the red zones are whole.
    pub(super) fn read(&self) -> std::result::Result<Vec<Vec<T>>, Fault> {
        let image = self.buffer.read()?;
        let zone = bytemuck::bytes_of(&self.zone);
        let intact =
            |range: Range<usize>| match range.clone().find(|&i| bytemuck::bytes_of(&image[i]) != zone) {
                Some(at) => Err(Fault::RedZone { buffer: self.name, at: at - range.start }),
                None => Ok(()),
            };
        let mut end = 0;
        for segment in &self.segments {
            intact(end..segment.start)?;
            end = segment.end;
        }
        intact(end..image.len())?;
        Ok(self.segments.iter().map(|s| image[s.clone()].to_vec()).collect())
    }

    /// The parts of the first segment that `named` tells; all else in it must still be `fill`.
    pub(super) fn read_named(
        &self,
        named: impl IntoIterator<Item = Range<usize>>,
        fill: T,
    ) -> std::result::Result<Vec<Vec<T>>, Fault> {
        let data = self.read()?.swap_remove(0);
        let mut free = vec![true; data.len()];
        let mut take = |range: Range<usize>| {
            free[range.clone()].fill(false);
            data[range].to_vec()
        };
        let parts = named.into_iter().map(&mut take).collect();
        let same = |i: &usize| bytemuck::bytes_of(&data[*i]) == bytemuck::bytes_of(&fill);
        match (0..data.len()).filter(|&i| free[i]).find(|i| !same(i)) {
            Some(at) => Err(Fault::Touched { buffer: self.name, at }),
            None => Ok(parts),
        }
    }
}
