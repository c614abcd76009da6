//! Defects to plant in kernels, each of which must turn the suite red.

use crate::conformance::{Options, run};
use crate::{Device, Method};

/// Words of one kernel file and what they are replaced by; none by default.
#[derive(Debug, Clone, Copy, Default)]
pub(in crate::backend) struct Defect {
    pub(in crate::backend) stem: &'static str,
    words: &'static str,
    by: &'static str,
    /// Where it must be found.
    filter: &'static str,
    method: Method,
}

pub(in crate::backend) const fn defect(
    stem: &'static str,
    [words, by]: [&'static str; 2],
    filter: &'static str,
) -> Defect {
    Defect { stem, words, by, filter, method: Method::Reference }
}

impl Defect {
    /// The same, to be found in another method.
    pub(in crate::backend) const fn in_method(self, method: Method) -> Defect {
        Defect { method, ..self }
    }

    /// The file with the defect, if it is in this one.
    pub(in crate::backend) fn apply(self, stem: &str, text: String) -> String {
        if self.stem != stem {
            return text;
        }
        assert_eq!(text.matches(self.words).count(), 1, "{self:?}: the words must stand there once");
        text.replace(self.words, self.by)
    }

    /// Whether the suite turns red on a device with the defect.
    pub(in crate::backend) fn is_noticed(self, device: &Device) -> bool {
        let Defect { filter, method, .. } = self;
        let options = Options { filter: Some(filter.into()), method, fail_fast: true, ..Options::default() };
        let report = run(device, &options, &mut |_| ());
        if let Some(failure) = report.failures.first() {
            println!("{} found in {}", self.words, failure.case);
        }
        !report.failures.is_empty()
    }
}
