//! The end of a file, and of what belongs to it.

use crate::files::OpenFile;
use crate::hazard::Hazard;
use crate::kernel::{Call, Channel, MS};
use crate::object::Path;
use crate::state::State;

/// How long closing waits for jobs that have not begun.
const FLUSH: u64 = 1_000 * MS;

/// A file goes. What it has exported and not closed first is kept until after its address space has gone.
pub(crate) fn closing(call: &mut Call<'_>, file: u32, open: &OpenFile) {
    let own = |handle: &u32| {
        let object = open.handles.get(*handle).and_then(|address| call.objects.get(address));
        object.is_some_and(|object| object.path == Path::Shmem { owner: file })
    };
    let exported = open.primes.values().filter(|handle| own(handle)).count();
    if exported > 0 {
        let config = call.config();
        call.hazard(config, Hazard::OutlivesFile { file, objects: exported });
    }
}

/// The last reference to a file has gone, and its handles with it: jobs that have not begun may still begin
/// for a second, then the address space goes.
pub(crate) fn postclose(call: &mut Call<'_>, file: u32) {
    let until = call.time.now().saturating_add(FLUSH);
    while call.rocket.jobs.waiting(file) > 0 && call.time.now() < until {
        call.wait(Channel::Written, Some(until));
    }
    for job in call.rocket.jobs.cancel(file) {
        call.release_job(&job);
    }
    let owned = |path: Path| path == Path::Shmem { owner: file };
    let left = call.objects.iter().filter(|(_, object)| owned(object.path)).count();
    let config = call.config();
    if left > 0 {
        call.hazard(config, Hazard::OutlivesFile { file, objects: left });
    }
    if let Some(space) = call.rocket.spaces.remove(&file)
        && (space.leaked || call.rocket.jobs.any_of(file))
    {
        call.rocket.gone.insert(file, space);
    }
}

impl State {
    /// Drops a reference to an object.
    pub(crate) fn put_shmem(&mut self, address: u64) {
        let Some(object) = self.objects.get_mut(address) else { return };
        object.refs = object.refs.saturating_sub(1);
        if object.refs > 0 {
            return;
        }
        let Path::Shmem { owner } = object.path else { return };
        let Some(object) = self.objects.remove(address) else { return };
        self.report.released(&object);
        if let Some(offset) = object.offset {
            self.offsets.remove(offset);
        }
        self.memory -= object.size;
        // Without its file it would be taken out of freed memory, which was said when the file went.
        if let Some(space) = self.rocket.space_of(owner) {
            space.give_back(object.iova, object.size);
        }
    }
}
