//! Freed ranges kept aside per CPU, for reuse in last-in, first-out order.
//!
//! Ranges of up to 32 pages go back into a magazine of their size's order, not into the tree, and
//! keep their place in it. Figures are those of Linux 6.1: six orders, magazines of 128, a depot of
//! 32 magazines.

/// Orders with magazines: 1, 2, 4, 8, 16 and 32 pages.
pub(crate) const ORDERS: usize = 6;
const MAGAZINE: usize = 128;
const DEPOT: usize = 32;
/// CPUs with magazines of their own; a number beyond them shares one.
const CPUS: usize = 64;

#[derive(Clone, Debug, Default)]
struct Cpu {
    loaded: Vec<u32>,
    spare: Vec<u32>,
}

/// The magazines of one order.
#[derive(Clone, Debug, Default)]
struct Order {
    cpus: Vec<Cpu>,
    depot: Vec<Vec<u32>>,
}

/// The magazines of an address space.
#[derive(Clone, Debug, Default)]
pub(crate) struct Magazines {
    orders: [Order; ORDERS],
}

/// The order of a size in pages, when ranges of that size are kept.
pub(crate) fn order_of(pages: u32) -> Option<usize> {
    let order = pages.checked_next_power_of_two()?.trailing_zeros() as usize;
    (order < ORDERS).then_some(order)
}

impl Magazines {
    /// A range of this order freed earlier, the CPU's last one first.
    pub(crate) fn take(&mut self, order: usize, cpu: usize) -> Option<u32> {
        let order = &mut self.orders[order];
        let Order { cpus, depot } = order;
        let cpu = cpus.get_mut(cpu % CPUS)?;
        if cpu.loaded.is_empty() {
            if !cpu.spare.is_empty() {
                std::mem::swap(&mut cpu.loaded, &mut cpu.spare);
            } else if let Some(full) = depot.pop() {
                cpu.loaded = full;
            }
        }
        cpu.loaded.pop()
    }

    /// Keeps a range. What no longer fits comes back, to be freed for good.
    #[must_use]
    pub(crate) fn put(&mut self, order: usize, cpu: usize, page: u32) -> Vec<u32> {
        let (order, cpu) = (&mut self.orders[order], cpu % CPUS);
        if order.cpus.len() <= cpu {
            order.cpus.resize_with(cpu + 1, Cpu::default);
        }
        let slot = &mut order.cpus[cpu];
        let mut overflow = Vec::new();
        if slot.loaded.len() >= MAGAZINE {
            if slot.spare.len() < MAGAZINE {
                std::mem::swap(&mut slot.loaded, &mut slot.spare);
            } else {
                let full = std::mem::take(&mut slot.loaded);
                if order.depot.len() < DEPOT {
                    order.depot.push(full);
                } else {
                    overflow = full;
                }
            }
        }
        slot.loaded.push(page);
        overflow
    }

    /// Empties all magazines.
    pub(crate) fn flush(&mut self) -> Vec<u32> {
        let mut pages = Vec::new();
        for order in &mut self.orders {
            for cpu in &mut order.cpus {
                pages.append(&mut cpu.loaded);
                pages.append(&mut cpu.spare);
            }
            for mut magazine in order.depot.drain(..) {
                pages.append(&mut magazine);
            }
        }
        pages
    }

    /// Ranges kept.
    pub(crate) fn len(&self) -> usize {
        let held = |cpu: &Cpu| cpu.loaded.len() + cpu.spare.len();
        let of = |order: &Order| {
            order.cpus.iter().map(held).sum::<usize>()
                + order.depot.iter().map(Vec::len).sum::<usize>()
        };
        self.orders.iter().map(of).sum()
    }
}
