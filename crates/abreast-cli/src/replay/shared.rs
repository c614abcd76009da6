//! Device memory for the tensors of a call's rows. Rows that name one tensor share one copy of it, as requests
//! with a common cache do.

use super::tensors::{Bits, Data};
use abreast::{Buffer, Device, Element, Error, View};
use std::collections::HashMap;

pub(super) struct Shared<T> {
    buffers: Vec<Buffer<T>>,
    /// Which buffer each row uses.
    of_row: Vec<usize>,
}

impl<T: Bits + Element> Shared<T> {
    pub(super) fn upload<'d, 'a: 'd, const N: usize>(
        device: &Device,
        rows: impl Iterator<Item = &'d Data<'a, T, N>>,
    ) -> Result<Self, Error>
    where
        T: 'a,
    {
        let mut known = HashMap::new();
        let mut shared = Shared { buffers: Vec::new(), of_row: Vec::new() };
        for data in rows {
            let found = data.address().and_then(|address| known.get(&(address, data.len())).copied());
            let buffer = match found {
                Some(buffer) => buffer,
                None => {
                    shared.buffers.push(device.upload(&data.load())?);
                    let buffer = shared.buffers.len() - 1;
                    known.extend(data.address().map(|address| ((address, data.len()), buffer)));
                    buffer
                }
            };
            shared.of_row.push(buffer);
        }
        Ok(shared)
    }

    pub(super) fn view(&self, row: usize) -> View<'_, T, 1> {
        self.buffers[self.of_row[row]].view()
    }
}
