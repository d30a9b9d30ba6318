//! Opening and closing of files, by the steps and by the end of threads and processes.

use super::descriptors;
use super::format::Step;
use super::run::{Run, View, is_process};
use rknpu_sim::{File, Node};
use rustix::io::Errno;
use std::collections::BTreeSet;
use std::sync::Arc;

impl Run<'_> {
    pub(super) fn file(&self, step: &Step) -> Option<Arc<File>> {
        let name = step.fd.as_deref().or_else(|| step.text("fd"))?;
        self.world().files.get(name).cloned()
    }

    pub(super) fn open(&self, n: usize, step: &Step) {
        let (Some(name), Some(path)) = (step.text("fd"), step.text("path")) else {
            return self.not_compared(n, "it names no file");
        };
        if step.errno().is_some_and(|errno| errno != "0") {
            return self.not_compared(n, "the node's permissions are the file system's");
        }
        let node = if path.contains("card") { Node::Card } else { Node::Render };
        // Roles are in the names.
        let root = !name.starts_with("nobody");
        let file = Arc::new(self.machine.open_as(node, root));
        self.outcome(n, step, &Ok(()));
        let mut world = self.world();
        world.files.insert(name.to_owned(), file);
        if node == Node::Card {
            world.cards.push(name.to_owned());
        }
        if step.thread.as_deref() == Some("child") {
            world.child.push(name.to_owned());
        }
    }

    pub(super) fn close(&self, n: usize, step: &Step) {
        let Some(name) = step.text("fd") else { return self.not_compared(n, "it names no file") };
        let mut world = self.world();
        let file = world.files.remove(name);
        let named = |kind: &str| world.tokens.get(&format!("{kind}:{name}"));
        let descriptor = named("dmabuf").or_else(|| world.tokens.get(name));
        drop(world);
        let open = file.is_some() || descriptor.is_some();
        self.outcome(n, step, &if open { Ok(()) } else { Err(Errno::BADF) });
        drop(file);
        if let Some(fd) = descriptor.and_then(|fd| i32::try_from(fd).ok()) {
            self.machine.descriptor_closed(fd);
        }
    }

    pub(super) fn is_open(&self, name: &str) -> bool {
        self.world().files.contains_key(name)
    }

    /// Closes dma-bufs that step `n` is the last to speak of, where the recorder made several of one
    /// name: it closed each when it was done with it, which is not recorded.
    pub(super) fn close_unused(&self, n: usize) {
        let steps = &self.scenario.steps;
        let made = |step: &Step| {
            let out = step.expect.get("out_changed").filter(|_| step.op == "PRIME_HANDLE_TO_FD");
            out.and_then(|out| Some(out.get("fd")?.as_str()?.to_owned()))
        };
        let speaks = |step: &Step, token: &str| {
            let name = token.trim_start_matches("dmabuf:");
            let fd = step.text("fd");
            made(step).as_deref() == Some(token) || fd == Some(token) || fd == Some(name)
        };
        let looked = |at: usize| steps.get(at).is_some_and(|step| step.op == "observe");
        if looked(n + 1) {
            // What is looked at next may be what the last call gave.
            return;
        }
        let last = (0..=n).rev().find(|&at| !looked(at)).unwrap_or(n);
        let tokens: BTreeSet<String> = steps[..=n].iter().filter_map(made).collect();
        for token in tokens {
            let several =
                steps.iter().filter(|step| made(step).as_ref() == Some(&token)).count() > 1;
            let next = steps[n + 1..].iter().find(|step| speaks(step, &token));
            let done = next.is_none_or(|next| made(next).as_ref() == Some(&token));
            if several && done && speaks(&steps[last], &token) {
                let mut world = self.world();
                let fd = world.tokens.get(&token).and_then(|fd| i32::try_from(fd).ok());
                world.tokens.forget(&token);
                world.made.retain(|made| Some(*made) != fd);
                drop(world);
                if let Some(fd) = fd {
                    self.machine.descriptor_closed(fd);
                    descriptors::close(std::iter::once(fd));
                }
            }
        }
    }

    /// A process ends: its own files and mappings go.
    pub(super) fn process_ends(&self, thread: &str) {
        let killed = |step: &Step| step.step == "child_killed_by_signal";
        if !is_process(thread) || self.scenario.steps.iter().any(killed) {
            return;
        }
        let mut world = self.world();
        let own = |step: &&Step| step.op == "open" && step.thread.as_deref() == Some(thread);
        let names = self.scenario.steps.iter().filter(own).filter_map(|step| step.text("fd"));
        let files: Vec<_> = names.filter_map(|name| world.files.remove(name)).collect();
        let views = std::mem::take(&mut world.views);
        let (gone, kept) =
            views.into_iter().partition(|view| view.thread.as_deref() == Some(thread));
        world.views = kept;
        let gone: Vec<View> = gone;
        drop(world);
        drop((gone, files));
    }

    /// A child process dies: its own files close.
    pub(crate) fn child_dies(&self) {
        let mut world = self.world();
        let names = std::mem::take(&mut world.child);
        let files: Vec<_> = names.iter().filter_map(|name| world.files.remove(name)).collect();
        drop(world);
        drop(files);
    }

    /// The file that a step's name speaks of (`ver_card`, `cap_render`), or any.
    pub(crate) fn named_file(&self, name: &str) -> Option<Arc<File>> {
        let world = self.world();
        let short = name.split_once('_').map_or(name, |(_, rest)| rest);
        let found = world.files.get(name).or_else(|| world.files.get(short));
        found.or_else(|| world.files.values().next()).cloned()
    }

    /// An open file of the card node.
    pub(crate) fn card(&self) -> Option<Arc<File>> {
        let world = self.world();
        world.cards.iter().find_map(|name| world.files.get(name)).cloned()
    }

    /// A file of the child process, or any.
    pub(crate) fn child_file(&self) -> Option<Arc<File>> {
        let world = self.world();
        let name = world.child.last()?;
        world.files.get(name).cloned()
    }
}
