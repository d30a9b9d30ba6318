//! Mappings: what they show, and what the kernel answers about them.

use super::{Run, View};
use crate::replay::descriptors;
use crate::replay::format::Step;
use crate::replay::vma;
use rustix::io::Errno;

/// Steps before which the recorder unmapped something without a word, as the counters at them show: all
/// mappings, or those of one buffer and the dma-bufs of it.
const UNSAID: &[(&str, &str, Option<u64>)] = &[
    ("failed_create_leaves_pages_mapped", "close", None),
    ("close_nolist", "close", None),
    ("prime", "exports and handles closed", Some(0x1_0000_0000)),
];

impl Run<'_> {
    pub(super) fn unmapped_unsaid(&mut self, step: &Step) {
        let here = |scenario: &str, at: &str| {
            scenario == self.scenario.name && (at == step.op || at == step.step)
        };
        match UNSAID.iter().find(|(scenario, at, _)| here(scenario, at)) {
            Some((_, _, None)) => self.views.clear(),
            Some((_, _, Some(offset))) => {
                let (offset, views) = (*offset, std::mem::take(&mut self.views));
                let of = |view: &View| view.offset == offset || view.of.starts_with("dmabuf");
                self.views = views.into_iter().filter(|view| !of(view)).collect();
                self.close_dma_bufs();
            }
            None => {}
        }
    }

    pub(super) fn mmap(&mut self, step: &Step) {
        let (offset, len) = (step.number("offset"), step.number("length"));
        let (Some(offset), Some(len)) = (offset, len.and_then(|len| usize::try_from(len).ok()))
        else {
            return self.skip("it names no range");
        };
        let of = step.fd.clone().unwrap_or_default();
        if step.text("flags") == Some("PRIVATE") {
            return self.skip("a private mapping, which is the kernel's to refuse");
        }
        if of == "R" && step.text("prot") == Some("RW") {
            return self.skip("the descriptor's mode, which is the kernel's to look at");
        }
        let result = match (self.file(step), self.dma_bufs.get(&of)) {
            (Some(file), _) => file.mmap(offset, len),
            (None, Some(fd)) => self.machine.mmap_dma_buf(*fd, offset, len),
            (None, None) => Err(Errno::BADF),
        };
        self.outcome(step, &result);
        if let Ok(mapping) = result {
            self.views.push(View { of, offset, mapping });
        }
    }

    /// A word that the recorder stored through one mapping and loads through another of the same buffer.
    pub(super) fn touch(&mut self, step: &Step) {
        let recorded = step.expect.get("out").and_then(|out| out.get("value")?.as_u64());
        let (Some(value), Some(first)) = (recorded, self.views.first()) else {
            return self.skip("it names no value");
        };
        let same = |view: &&View| view.mapping.same_buffer(&first.mapping);
        let last = self.views.iter().rfind(same).unwrap_or(first);
        let value = value as u8;
        first.mapping.write(0, &[value]);
        let mut byte = [!value];
        last.mapping.read(0, &mut byte);
        if byte[0] != value {
            self.differ("value", value, byte[0]);
        }
        self.outcome(step, &Ok(()));
    }

    /// Calls of the kernel on a mapping or a descriptor, whose answers follow from how the driver maps.
    pub(super) fn kernels(&mut self, step: &Step) {
        let answer = match step.op.as_str() {
            "lseek_end" => {
                let fd = self.dma_bufs.get(step.fd.as_deref().unwrap_or_default());
                let size = fd.and_then(|fd| descriptors::size(*fd));
                self.field(step, "size", size.unwrap_or(0));
                return self.outcome(step, &size.map(drop).ok_or(Errno::BADF));
            }
            "mremap_grow" => vma::answer("mremap_grow"),
            "mlock" => vma::answer("mlock"),
            "msync" => vma::answer("msync"),
            "process_vm_readv" => vma::answer("process_vm"),
            "pread_buffered_into_object" => vma::answer("into_buf"),
            "write_from_object" => vma::answer("from_buf"),
            // Of pages that cannot be pinned.
            "madvise_DONTNEED" => vma::answer("dofork"),
            "pread_O_DIRECT_into_object" => vma::answer("process_vm"),
            _ => return self.skip("a call that the kernel answers before the driver"),
        };
        let Some(answer) = answer else { return self.skip("a call that is not known") };
        if answer.ret > 0 {
            self.field(step, "ret", answer.ret.cast_unsigned());
        }
        self.outcome(step, &answer.result);
    }
}
