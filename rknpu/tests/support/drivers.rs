//! Both kernel drivers, as a parameter of tests: what the crate promises it promises with either.

use rknpu::sim::config::{Config, Driver, Form};

/// The vendor's, and mainline's as it is now.
#[allow(dead_code, reason = "not every test needs both")]
pub(crate) const DRIVERS: [Driver; 2] = [Driver::Rknpu, Driver::Rocket(Form::Later)];

/// A machine with a driver.
#[allow(dead_code, reason = "not every test needs it")]
pub(crate) fn with(driver: Driver) -> Config {
    Config { driver, ..Config::default() }
}

/// Makes tests of functions that take a driver: each with either.
#[allow(unused_macros, reason = "not every test needs it")]
macro_rules! on_both_drivers {
    ($($name:ident),+ $(,)?) => {
        mod on_rknpu {
            $(#[test] fn $name() { super::$name(super::drivers::DRIVERS[0]); })+
        }
        mod on_rocket {
            $(#[test] fn $name() { super::$name(super::drivers::DRIVERS[1]); })+
        }
    };
}
#[allow(unused_imports, reason = "not every test needs it")]
pub(crate) use on_both_drivers;
