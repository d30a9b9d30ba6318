//! MEM_DESTROY, GEM_CLOSE and the end of a file.

use crate::domain::FREE_TRIES;
use crate::kernel::Call;
use rknpu_sys::drm::GemClose;
use rknpu_sys::uapi::MemDestroy;
use rustix::io::Errno;

/// MEM_DESTROY: waits for the object's domain before it gives the handle back.
pub(crate) fn destroy(call: &mut Call<'_>, file: u32, args: &mut MemDestroy) -> Result<(), Errno> {
    let lookup = |call: &Call<'_>| {
        let address = call.files.get(file)?.handles.get(args.handle)?;
        Some((address, call.objects.get(address)?.domain))
    };
    let (address, domain) = lookup(call).ok_or(Errno::INVAL)?;
    let mut got = Err(Errno::INVAL);
    for _ in 0..FREE_TRIES {
        got = call.get_domain(domain);
        if got.is_ok() {
            break;
        }
    }
    got?;
    // Somebody else may have destroyed it meanwhile; the driver would go on with freed memory.
    let still = lookup(call).is_some_and(|(now, _)| now == address);
    if still {
        drop_handle(call, file, args.handle);
    }
    let config = call.config();
    call.put_domain(config);
    if still { Ok(()) } else { Err(Errno::INVAL) }
}

/// GEM_CLOSE: the handle goes at once, the object when its domain can be had.
pub(crate) fn gem_close(call: &mut Call<'_>, file: u32, args: &mut GemClose) -> Result<(), Errno> {
    if drop_handle(call, file, args.handle) { Ok(()) } else { Err(Errno::INVAL) }
}

/// Gives a handle back; `false` when there is none of that number.
pub(crate) fn drop_handle(call: &mut Call<'_>, file: u32, handle: u32) -> bool {
    let Some(open) = call.files.get_mut(file) else { return false };
    let Some(address) = open.handles.take(handle) else { return false };
    open.primes.retain(|_, of| *of != handle);
    forget(call, address);
    // The number is free only after the object is; somebody may get in between.
    call.dawdle();
    if let Some(open) = call.files.get_mut(file) {
        open.handles.retire(handle);
    }
    true
}

fn forget(call: &mut Call<'_>, address: u64) {
    if let Some(object) = call.objects.get_mut(address) {
        object.handles = object.handles.saturating_sub(1);
        if object.handles == 0 {
            call.objects.unname(address);
        }
    }
    call.put_object(address);
}

/// Drops a reference to a file. With the last one its handles go, lowest first, each waiting for its
/// object's domain.
pub(crate) fn put_file(call: &mut Call<'_>, file: u32) {
    let Some(open) = call.files.put(file) else { return };
    if crate::rocket::is(call.config()) {
        crate::rocket::closing(call, file, &open);
    }
    for (_, address) in open.handles.iter() {
        forget(call, address);
    }
    if crate::rocket::is(call.config()) {
        crate::rocket::postclose(call, file);
    }
}
