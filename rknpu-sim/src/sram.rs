//! On-chip memory given to the NPU, in chunks of a page: first fit, never in part.

/// Bytes of a chunk.
const CHUNK: u64 = 4096;

/// Which chunks are used.
#[derive(Debug)]
pub(crate) struct Sram {
    used: Vec<bool>,
}

impl Sram {
    pub(crate) fn new(bytes: u64) -> Sram {
        Sram { used: vec![false; usize::try_from(bytes / CHUNK).unwrap_or(0)] }
    }

    /// Bytes in all.
    pub(crate) fn total(&self) -> u64 {
        self.used.len() as u64 * CHUNK
    }

    /// Bytes free.
    pub(crate) fn free(&self) -> u64 {
        self.used.iter().filter(|used| !**used).count() as u64 * CHUNK
    }

    /// Takes `bytes`, a multiple of a page: the first chunk, when one hole holds them all.
    pub(crate) fn take(&mut self, bytes: u64) -> Option<usize> {
        let chunks = usize::try_from(bytes / CHUNK).ok().filter(|&chunks| chunks > 0)?;
        let start = self.used.windows(chunks).position(|hole| !hole.contains(&true))?;
        self.used[start..start + chunks].fill(true);
        Some(start)
    }

    /// Gives `bytes` back.
    pub(crate) fn give_back(&mut self, start: usize, bytes: u64) {
        let chunks = usize::try_from(bytes / CHUNK).unwrap_or(0);
        if let Some(hole) = self.used.get_mut(start..start + chunks) {
            hole.fill(false);
        }
    }

    /// The `mm` file: one character per chunk, 32 to a line.
    pub(crate) fn text(&self) -> String {
        let mut text = String::from("SRAM bitmap: \"*\" - used, \".\" - free (1bit = 4KB)\n");
        for (row, chunks) in self.used.chunks(32).enumerate() {
            let marks: String = chunks.iter().map(|used| if *used { '*' } else { '.' }).collect();
            text += &format!("[{row:03}] [{marks}]\n");
        }
        let (total, free) = (self.total(), self.free());
        text += &format!("SRAM total size: {total}, used: {}, free: {free}\n", total - free);
        text
    }
}
