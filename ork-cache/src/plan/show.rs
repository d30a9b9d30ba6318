//! A plan for people.

use std::fmt;

use super::{Mode, Place, Plan};

/// Bytes in the unit that suits them.
struct Size(u64);

impl fmt::Display for Size {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let mib = self.0 as f64 / (1u64 << 20) as f64;
        let text =
            if mib < 1024.0 { format!("{mib:.1} MiB") } else { format!("{:.2} GiB", mib / 1024.0) };
        f.pad(&text)
    }
}

impl fmt::Display for Mode {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.pad(match self {
            Mode::Resident => "RESIDENT",
            Mode::Mixed => "MIXED",
            Mode::Stream => "STREAM",
        })
    }
}

impl fmt::Display for Plan {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let resident = self.places.iter().filter(|p| matches!(p, Place::Resident(_))).count();
        writeln!(
            f,
            "{} on {}: {}, {} in {} weights, {} resident, {} of device memory",
            self.model,
            self.board.name,
            self.mode,
            Size(self.bytes),
            self.places.len(),
            resident,
            Size(self.device_bytes())
        )?;
        if self.board.lanes > 1 {
            writeln!(
                f,
                "  each weight is split by columns over {} address spaces, one for each core",
                self.board.lanes
            )?;
        }
        for (i, share) in self.domains.iter().enumerate() {
            write!(f, "  domain {i:>2}: {:>10} resident", Size(share.resident))?;
            for class in self.classes.iter().filter(|c| c.domain.index() == i) {
                write!(f, ", {} slots of {}", class.slots, Size(class.slot))?;
            }
            writeln!(f, ", {} scratch, {} headroom", Size(share.scratch), Size(share.headroom))?;
        }
        let left = self.board.left();
        if let Some(budget) = self.board.budget.filter(|&budget| budget > left) {
            writeln!(
                f,
                "  the budget of {} is more than the board has: {} of its {} are left by the system",
                Size(budget),
                Size(left),
                Size(self.board.ram)
            )?;
        }
        if self.rows < self.board.rows {
            writeln!(
                f,
                "  the budget is small: batches of {} rows are multiplied {} rows at a time",
                self.board.rows, self.rows
            )?;
        }
        let c = &self.cost;
        write!(f, "  a pass loads {} weights ({})", c.weights_per_pass, Size(c.bytes_per_pass))?;
        if c.loads_per_pass > c.weights_per_pass {
            write!(f, " in {} loads, the largest in parts,", c.loads_per_pass)?;
        }
        let lru = (c.lru_weights_per_pass, Size(c.lru_bytes_per_pass));
        if self.board.lanes > 1 {
            writeln!(f, ", and no space keeps another from being used")?;
            return write!(f, "  LRU on the same bytes would load {} weights ({})", lru.0, lru.1);
        }
        writeln!(f, " and switches domains {} times", c.switches_per_pass)?;
        write!(
            f,
            "  LRU on the same bytes would load {} weights ({}) and switch {} times",
            lru.0, lru.1, c.lru_switches_per_pass
        )
    }
}
