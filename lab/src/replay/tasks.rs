//! Task arrays, and jobs of them that were not recorded one by one.

use crate::replay::format::{Step, number};
use crate::replay::layout::get;
use crate::replay::observe::compare;
use crate::replay::run::Run;
use rknpu_sim::Mapping;
use rknpu_sys::uapi::{SubcoreTask, Submit, Task};
use serde_json::Value;
use std::mem::offset_of;
use zerocopy::IntoBytes;

impl Run<'_> {
    fn with_tasks(&self, f: impl FnOnce(&Mapping)) {
        let world = self.world();
        let views = || world.views.iter().rev();
        if let Some(view) = views().find(|view| view.tasks).or_else(|| views().next()) {
            f(&view.mapping);
        }
    }

    pub(super) fn write_task(&self, step: &Step) {
        let at = task_at(step);
        let int_clear = ("int_clear", offset_of!(Task, int_clear), 4);
        self.with_tasks(|mapping| {
            mapping.write(at, &[0; size_of::<Task>()]);
            put_view(mapping, at, int_clear, 0x1_ffff);
            for field in TASK {
                if let Some(value) = step.number(field.0) {
                    put_view(mapping, at, *field, value);
                }
            }
        });
    }

    /// Compares a task; the recorder then cleared its status for the next job.
    pub(super) fn read_task(&self, n: usize, step: &Step) {
        let at = task_at(step);
        let mut bytes = [0; size_of::<Task>()];
        self.with_tasks(|mapping| {
            mapping.read(at, &mut bytes);
            put_view(mapping, at, ("int_status", offset_of!(Task, int_status), 4), 0);
        });
        for (name, offset, len) in TASK {
            let Some(recorded) = step.expect.get(*name) else { continue };
            let simulated = get(&bytes, *offset, *len);
            if number(recorded) != Some(simulated) {
                self.differ(n, name, recorded, &format!("{simulated:#x}"));
            }
        }
    }

    /// Many tasks at once. In numbers: alike. In words: "20 tasks, task i: …, regcfg_amount 100+i,
    /// regcmd_addr OK after 1000+10*i us".
    pub(super) fn write_tasks(&self, n: usize, step: &Step) {
        let words = step.value.as_str();
        let count = match words {
            Some(text) => text.split(' ').next().and_then(|count| count.parse().ok()),
            None => number(&step.value),
        };
        let known = words.is_none_or(|text| {
            text.ends_with("regcfg_amount 100+i, regcmd_addr OK after 1000+10*i us")
        });
        let Some(count) = count.filter(|_| known) else {
            return self.not_compared(n, "tasks that are described in other words");
        };
        self.with_tasks(|mapping| {
            for index in 0..count {
                let (amount, address) = match words {
                    Some(_) => (100 + index, 0x8000_0000 + 1000 + 10 * index),
                    None => (108, 0x8000_0001),
                };
                let task = Task {
                    int_mask: 0x300,
                    regcfg_amount: amount as u32,
                    regcmd_addr: address,
                    ..Task::default()
                };
                mapping.write(index as usize * size_of::<Task>(), task.as_bytes());
            }
        });
    }

    /// The status words of the first tasks.
    pub(super) fn statuses(&self, n: usize, recorded: &[Value]) {
        let mut found = vec![0; recorded.len()];
        self.with_tasks(|mapping| {
            for (index, status) in found.iter_mut().enumerate() {
                let mut word = [0; 4];
                let at = index * size_of::<Task>() + offset_of!(Task, int_status);
                mapping.read(at, &mut word);
                *status = u32::from_le_bytes(word);
            }
        });
        for (index, (recorded, status)) in recorded.iter().zip(found).enumerate() {
            compare(self, n, &format!("task {index}"), recorded, status.into());
        }
    }

    /// Jobs that a thread submitted one after the other to the core of its number, and how many failed.
    pub(super) fn jobs(&self, n: usize, step: &Step) {
        let core = step.thread.as_deref().and_then(|thread| thread.strip_prefix('J'));
        let core: Option<u32> = core.and_then(|core| core.parse().ok());
        let tasks = self.scenario.steps.iter().find(|step| step.op == "MEM_CREATE");
        let object = tasks.and_then(|step| self.object_of(step)).unwrap_or(0);
        let file = tasks.and_then(|step| self.file(step));
        let (Some(core), Some(file)) = (core, file) else {
            return self.not_compared(n, "jobs of an unknown core");
        };
        let count = step.value.get("jobs").and_then(number).unwrap_or(0);
        let failed = (0..count).filter(|_| {
            let mut job = Submit {
                flags: 0x5,
                timeout: 2000,
                task_number: 1,
                task_obj_addr: object,
                core_mask: 1 << core.min(2),
                fence_fd: -1,
                subcore_task: [SubcoreTask { task_start: 0, task_number: 1 }; 5],
                ..Submit::default()
            };
            file.call(&mut job).is_err()
        });
        let failed = failed.count() as u64;
        let recorded = step.value.get("failed").unwrap_or(&Value::Null);
        compare(self, n, "failed", recorded, failed);
    }
}

type TaskField = (&'static str, usize, usize);

const TASK: &[TaskField] = &[
    ("int_mask", offset_of!(Task, int_mask), 4),
    ("int_clear", offset_of!(Task, int_clear), 4),
    ("int_status", offset_of!(Task, int_status), 4),
    ("regcfg_amount", offset_of!(Task, regcfg_amount), 4),
    ("regcmd_addr", offset_of!(Task, regcmd_addr), 8),
];

fn task_at(step: &Step) -> usize {
    let index = step.number("idx").and_then(|index| usize::try_from(index).ok()).unwrap_or(0);
    index.saturating_mul(size_of::<Task>())
}

fn put_view(mapping: &Mapping, at: usize, (_, offset, len): TaskField, value: u64) {
    mapping.write(at.saturating_add(offset), &value.to_le_bytes()[..len]);
}
