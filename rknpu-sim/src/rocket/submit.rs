//! SUBMIT: what of its jobs is queued, and what is dropped without a word.

use super::calls::{is_first_form, oops};
use super::jobs::{Job, Task};
use super::user::{copy_in, fits_an_array};
use crate::hazard::Hazard;
use crate::kernel::Call;
use rknpu_sys::rocket;
use rustix::io::Errno;
use std::collections::BTreeSet;
use zerocopy::FromBytes;

/// Why a job is dropped: SUBMIT says 0 all the same.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Dropped {
    /// Before anything was allocated.
    AtOnce,
    /// While its tasks and objects were looked up, before it had its address space.
    LookingUp,
    /// When its objects were locked.
    Locking,
}

pub(super) fn submit(
    call: &mut Call<'_>,
    file: u32,
    args: &mut rocket::Submit,
) -> Result<(), Errno> {
    if args.job_count == 0 {
        return Ok(());
    }
    let size = u64::from(args.job_struct_size);
    if size < size_of::<rocket::Job>() as u64 || args.reserved != 0 {
        return Err(Errno::INVAL);
    }
    if !fits_an_array(args.job_count, size_of::<rocket::Job>() as u64) {
        return Err(Errno::NOMEM);
    }
    // All of them first: a job that cannot be read keeps the others from being queued.
    let mut jobs = Vec::new();
    for at in 0..u64::from(args.job_count) {
        let address = args.jobs.checked_add(at * size).ok_or(Errno::FAULT)?;
        let bytes = copy_in(address, size_of::<rocket::Job>() as u64)?;
        jobs.push(rocket::Job::read_from_bytes(&bytes).map_err(|_| Errno::FAULT)?);
    }
    for job in &jobs {
        match accept(call, file, job) {
            Ok(_) if call.faults.dropped_job() => call.report.jobs_dropped += 1,
            Ok(job) => queue(call, file, job),
            Err(Dropped::LookingUp) if is_first_form(call) => {
                return Err(oops(call, Hazard::JobWithoutDomain));
            }
            Err(_) => call.report.jobs_dropped += 1,
        }
    }
    Ok(())
}

fn accept(call: &Call<'_>, file: u32, args: &rocket::Job) -> Result<Job, Dropped> {
    if args.task_count == 0 {
        return Err(Dropped::AtOnce);
    }
    let lost = |_: Errno| Dropped::LookingUp;
    let tasks = tasks(args).map_err(lost)?;
    let read = objects(call, file, args.in_bo_handles, args.in_bo_handle_count).map_err(lost)?;
    let write = objects(call, file, args.out_bo_handles, args.out_bo_handle_count).map_err(lost)?;
    let mut seen = BTreeSet::new();
    if !read.iter().chain(&write).all(|address| seen.insert(*address)) {
        return Err(Dropped::Locking);
    }
    let map = call.rocket.spaces.get(&file).ok_or(Dropped::AtOnce)?.map.clone();
    Ok(Job::new(file, tasks, read, write, map))
}

fn tasks(args: &rocket::Job) -> Result<Vec<Task>, Errno> {
    let size = u64::from(args.task_struct_size);
    if size < size_of::<rocket::Task>() as u64 {
        return Err(Errno::INVAL);
    }
    if !fits_an_array(args.task_count, size_of::<Task>() as u64) {
        return Err(Errno::NOMEM);
    }
    let bytes = copy_in(args.tasks, u64::from(args.task_count) * size)?;
    let all = bytes.chunks_exact(size as usize).map(|bytes| {
        let (task, _) = rocket::Task::read_from_prefix(bytes).map_err(|_| Errno::FAULT)?;
        if task.regcmd_count == 0 {
            return Err(Errno::INVAL);
        }
        Ok(Task::new(task))
    });
    all.collect()
}

/// The objects of a list of handles.
fn objects(call: &Call<'_>, file: u32, list: u64, count: u32) -> Result<Vec<u64>, Errno> {
    if count == 0 {
        return Ok(Vec::new());
    }
    if !fits_an_array(count, 8) {
        return Err(Errno::NOMEM);
    }
    let bytes = copy_in(list, u64::from(count) * 4)?;
    let open = call.files.get(file).ok_or(Errno::BADF)?;
    let handles = bytes.as_chunks::<4>().0.iter().map(|bytes| u32::from_le_bytes(*bytes));
    handles.map(|handle| open.handles.get(handle).ok_or(Errno::NOENT)).collect()
}

fn queue(call: &mut Call<'_>, file: u32, job: Job) {
    for address in job.objects() {
        if let Some(object) = call.objects.get_mut(address) {
            object.refs += 1;
        }
    }
    call.rocket.jobs.queue(file, job);
    call.start_rocket();
}
