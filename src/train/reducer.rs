//! Averages of gradients, in buckets.

use std::ops::Range;
use std::time::{Duration, Instant};

use super::bucket::Bucket;
use super::failure::{check_step_number, succeed_together, tell_failure};
use super::layout::{Layout, Limits, ParameterPlace};
use super::ordered::Ordered;
use super::parameter::agree_on_parameters;
use super::schedule::{Order, Schedule};
use super::slot::{BucketSlot, not_idle};
use super::streams::OnProgram;
use super::{Parameter, ReducerOptions};
use crate::job::Group;
use crate::purpose::Purpose;
use crate::{Element as _, Error};

/// Reduces the gradients of a model over all ranks of a group, while the backward pass still computes others.
///
/// Gradients are copied into buckets. The reduction of a bucket starts once all its gradients are
/// [`ready`](Step::ready) and the buckets before it have started, so that all ranks start buckets in the same
/// order. In the first step, buckets have the parameters in reverse order; afterwards, in the order in which
/// rank 0's gradients became ready in the first step.
///
/// All ranks get the same bits, so that replicas with equal parameters stay equal.
///
/// Buckets start at different times on different ranks. So from the first `ready` of a step until `wait`,
/// other operations and reducers need a group of their own ([`Group::split`]).
///
/// # Steps
/// [`step`](Self::step) begins a step. In it, every parameter is [`ready`](Step::ready) or
/// [`ready_zero`](Step::ready_zero), in any order; then [`wait`](Step::wait) ends it, and
/// [`gradient`](Self::gradient) returns the averages. To accumulate gradients over several backward passes,
/// begin the step with the last.
///
/// The program numbers its steps by its loop over batches, and the ranks compare the numbers: a rank that
/// skipped a batch is not averaged with another batch of the other ranks. So count skipped batches as well.
/// If ranks are in different steps, all get [`Error::Mismatch`] with both steps; on GPUs a later call returns
/// it.
///
/// # Errors
/// A call that is refused ([`Error::Job`], [`Error::Buffer`]: an unknown index, a wrong length, a second
/// `ready` of a parameter) changes nothing, and the step can go on. `wait` with gradients that are missing
/// fails on all ranks: it tells the others, whose `wait` returns [`Error::RankFailed`] with the names; so
/// does a `ready` of the second step that finds no memory for another order of the buckets. After that, and
/// after any error of the group, the reducer returns the same error from all calls. [`job`](crate::job)
/// describes how to go on.
///
/// A rank that does not begin its step keeps the others in `wait`, until the timeout of
/// [`Group::set_timeout`]. A rank without a batch calls [`ready_zero`](Step::ready_zero) for all parameters.
///
/// # Memory
/// A reducer holds a copy of all gradients, and with [`Wire::Bf16`](super::Wire::Bf16) a second one in
/// bfloat16. On hosts, only the second step may allocate memory for data, if the order of buckets changes.
///
/// # GPUs
/// A gradient is copied on the stream of its memory, after the work that is queued there, and may be freed
/// right after `ready`. These streams wait for the reductions from `wait` on, and the host does not wait,
/// except in the first step, in which the ranks agree on the order. A rank in another step is noticed when
/// the first bucket of the step is reduced, by all ranks: the error is returned by a later call. Order any
/// other stream that writes gradients or reads averages by events, or cudarc's event tracking. Per-thread
/// default streams are refused, and so are all calls inside `nccl::group` and during a capture of one of
/// these streams or the group's, in which a dropped reducer leaks its memory. A later call returns a failure
/// of another rank: before results are stored, synchronise the stream and call [`Group::check`].
pub struct Reducer<#[cfg(feature = "fabric")] B: Bucket = Vec<f32>, #[cfg(not(feature = "fabric"))] B: Bucket>
{
    /// Number among the reducers of the group.
    number: u32,
    parameters: Vec<Parameter>,
    lens: Vec<usize>,
    options: ReducerOptions,
    layout: Layout,
    schedule: Schedule,
    slots: Ordered<B, Vec<BucketSlot<B>>>,
    order: Order,
    state: ReducerState,
    /// The step that is under way, or was begun last.
    step: u64,
    /// The last step that is complete.
    last: Option<u64>,
    exposed: Duration,
}

/// A step of a [`Reducer`] that is under way ([`Reducer::step`]). Dropping it leaves the step as it is:
/// [`Reducer::step`] with the same number returns it again.
#[must_use = "a step averages nothing without its gradients and `wait`"]
pub struct Step<
    'a,
    #[cfg(feature = "fabric")] B: Bucket = Vec<f32>,
    #[cfg(not(feature = "fabric"))] B: Bucket,
> {
    reducer: &'a mut Reducer<B>,
}

enum ReducerState {
    /// Some gradients of a step are ready, or none ever was.
    Open,
    /// The averages are there.
    Complete,
    Failed(Error),
}

impl<B: Bucket> Reducer<B> {
    /// Prepares the reduction of these parameters' gradients. Collective: returns when every rank of the
    /// group has called it.
    ///
    /// # Errors
    /// [`Error::Job`] on all ranks if parameters or options differ between ranks (it names the first
    /// difference and the ranks), if two parameters have one name, or if a rank has too little memory.
    /// [`Error::Buffer`] if the group is on another backend than the memory. The group can still be used
    /// after these. Otherwise errors of the group.
    pub fn new(group: &Group, parameters: &[Parameter], options: &ReducerOptions) -> Result<Self, Error> {
        let number = group.next_reducer();
        let exchange = group.with_purpose(Purpose::NewReducer);
        agree_on_parameters(&exchange, parameters, B::Element::DATA_TYPE, options)?;
        succeed_together(&exchange, Self::prepare_reducer(group, number, parameters, options))
    }

    fn prepare_reducer(
        group: &Group,
        number: u32,
        parameters: &[Parameter],
        options: &ReducerOptions,
    ) -> Result<Self, Error> {
        let lens: Vec<usize> = parameters.iter().map(Parameter::len).collect();
        let layout = Layout::new(&lens, (0..lens.len()).rev(), bucket_limits::<B>(options));
        let slots = Ordered::new(group, "a reducer", |side, slots| {
            BucketSlot::allocate_slots(side, slots, &layout, options.wire)
        })?;
        Ok(Self {
            number,
            parameters: parameters.to_vec(),
            lens,
            options: options.clone(),
            schedule: Schedule::new(&layout),
            layout,
            slots,
            order: Order::Unknown,
            state: ReducerState::Open,
            step: 0,
            last: None,
            exposed: Duration::ZERO,
        })
    }

    /// Begins step `number`, or returns it again if it is under way. The number is the program's, below 2^44;
    /// each step has another one than the step before. See [Steps](Self#steps).
    ///
    /// # Errors
    /// [`Error::Job`] if another step is under way, of which a gradient is ready, and if the last step had
    /// this number, with nothing changed. See [`Reducer`].
    pub fn step(&mut self, number: u64) -> Result<Step<'_, B>, Error> {
        self.check_state()?;
        check_step_number(number, self.last)?;
        if !self.schedule.is_new() && number != self.step {
            let missing = self.schedule.missing_parameters().count();
            return Err(Error::Job(format!(
                "step {} is not complete (missing gradients: {missing}): call wait before step {number}",
                self.step
            )));
        }
        self.step = number;
        Ok(Step { reducer: self })
    }

    /// The reduced gradient of parameter `index`, from [`wait`](Step::wait) until the next
    /// [`ready`](Step::ready).
    ///
    /// # Errors
    /// [`Error::Job`] at other times, and if there is no such parameter.
    pub fn gradient(&self, index: usize) -> Result<B::View<'_>, Error> {
        self.check_state()?;
        if !matches!(self.state, ReducerState::Complete) {
            return Err(Error::Job(
                "the gradients of this step are not reduced yet: call wait first".to_owned(),
            ));
        }
        let place = self.layout.places.get(index).ok_or_else(|| self.unknown_parameter(index))?;
        let slot =
            self.slots.read_memory()?.get(place.bucket).ok_or_else(|| self.unknown_parameter(index))?;
        slot.reduced_values()?.view(place.range.clone())
    }

    /// Does all of step `number`: replaces the gradients by their reductions. `gradients` has one for each
    /// parameter, in their order.
    ///
    /// # Errors
    /// Those of [`step`](Self::step). [`Error::Buffer`] for wrong lengths or another number of gradients,
    /// with nothing sent.
    pub fn average(&mut self, number: u64, gradients: &mut [B::ViewMut<'_>]) -> Result<(), Error> {
        self.admit_call()?;
        if gradients.len() != self.lens.len() {
            return Err(Error::Buffer(format!(
                "{} gradients for {} parameters: pass one for each",
                gradients.len(),
                self.lens.len()
            )));
        }
        for (index, gradient) in gradients.iter().enumerate() {
            let given = B::view_len(&B::read(gradient));
            if given != self.expect_gradient(index)? {
                return Err(self.wrong_length(index, given));
            }
        }
        // Before the first is copied, so that a refusal changes nothing.
        for gradient in &*gradients {
            self.register_gradient(&B::read(gradient))?;
        }
        let mut step = self.step(number)?;
        for (index, gradient) in gradients.iter().enumerate().rev() {
            step.ready(index, B::read(gradient))?;
        }
        step.wait()?;
        // The program's world may have begun a capture since.
        self.slots.check_callable().map_err(|error| self.fail_with(error))?;
        for (index, target) in gradients.iter_mut().enumerate() {
            let copied = B::copy(&self.gradient(index)?, target);
            copied.map_err(|error| self.fail_with(error))?;
        }
        Ok(())
    }

    /// Registers the stream of a gradient, or refuses its memory.
    fn register_gradient(&mut self, gradient: &B::View<'_>) -> Result<(), Error> {
        let registered = self.slots.register_view(gradient);
        registered.map_err(|error| self.refuse_or_fail(error))
    }

    /// Exposed communication: the time for which the last [`wait`](Step::wait) blocked the host, since the
    /// backward pass did not hide all of it. On GPUs, where the streams wait, only the time of the calls. The
    /// agreement on the order in the first step is not included. Zero before the first step.
    #[must_use]
    pub fn exposed(&self) -> Duration {
        self.exposed
    }

    /// Number of buckets. It can change once, in the second step, with the order of the gradients.
    #[must_use]
    pub fn buckets(&self) -> usize {
        self.layout.buckets.len()
    }

    /// The parameters.
    #[must_use]
    pub fn parameters(&self) -> &[Parameter] {
        &self.parameters
    }

    /// The group.
    #[must_use]
    pub fn group(&self) -> &Group {
        self.slots.as_group()
    }

    fn accept_gradient(&mut self, index: usize, gradient: B::View<'_>) -> Result<(), Error> {
        self.admit_call()?;
        let len = self.expect_gradient(index)?;
        let given = B::view_len(&gradient);
        if given != len {
            return Err(self.wrong_length(index, given));
        }
        self.register_gradient(&gradient)?;
        self.begin_step()?;
        self.write_and_start(index, |slot, side, range| slot.put_gradient(side, range.start, &gradient))
    }

    fn ready_zero(&mut self, index: usize) -> Result<(), Error> {
        self.admit_call()?;
        self.expect_gradient(index)?;
        self.begin_step()?;
        self.write_and_start(index, |slot, side, range| slot.clear_gradient(side, range))
    }

    fn finish_step(&mut self) -> Result<(), Error> {
        self.admit_call()?;
        if self.schedule.missing_parameters().next().is_some() {
            let error = self.missing_gradients();
            return Err(self.fail_with(error));
        }
        let began = Instant::now();
        let done = self.finish_buckets();
        self.exposed = began.elapsed();
        done.and_then(|()| self.agree_on_order()).map_err(|error| self.fail_with(error))?;
        self.schedule.begin_step(&self.layout);
        self.state = ReducerState::Complete;
        self.last = Some(self.step);
        Ok(())
    }

    /// Checks that a gradient is expected, and returns its length.
    fn expect_gradient(&self, index: usize) -> Result<usize, Error> {
        self.check_state()?;
        let len = *self.lens.get(index).ok_or_else(|| self.unknown_parameter(index))?;
        if self.schedule.is_ready(index) {
            return Err(Error::Job(format!(
                "the gradient of {} is ready for the second time in step {}: call wait between steps",
                self.parameter_name(index),
                self.step
            )));
        }
        Ok(len)
    }

    /// Begins a step with its first gradient.
    fn begin_step(&mut self) -> Result<(), Error> {
        if !self.schedule.is_new() {
            return Ok(());
        }
        self.state = ReducerState::Open;
        // One stream may still read averages that another one overwrites.
        self.slots.join_streams().map_err(|error| self.fail_with(error))?;
        let Order::Known(order) = &self.order else { return Ok(()) };
        let order = order.iter().map(|&parameter| parameter as usize);
        let layout = Layout::new(&self.lens, order, bucket_limits::<B>(&self.options));
        self.order = Order::Arranged;
        if layout == self.layout {
            return Ok(());
        }
        self.schedule = Schedule::new(&layout);
        self.layout = layout;
        self.renew_buckets().map_err(|error| self.fail_with(error))
    }

    /// Replaces the buckets by those of the layout. The program may still read the averages.
    fn renew_buckets(&mut self) -> Result<(), Error> {
        let (layout, wire) = (&self.layout, self.options.wire);
        self.slots.renew_memory(|side, slots| BucketSlot::allocate_slots(side, slots, layout, wire))
    }

    /// Writes a gradient into its bucket, and starts the buckets that may start then.
    fn write_and_start(
        &mut self,
        index: usize,
        write: impl FnOnce(&mut BucketSlot<B>, &OnProgram<'_, B::Streams>, Range<usize>) -> Result<(), Error>,
    ) -> Result<(), Error> {
        let Some(ParameterPlace { bucket, range }) = self.layout.places.get(index).cloned() else {
            return Err(self.unknown_parameter(index));
        };
        let written = self
            .slots
            .on_program()
            .and_then(|(side, slots)| write(slots.get_mut(bucket).ok_or_else(not_idle)?, &side, range));
        written.and_then(|()| self.start_buckets(index, bucket)).map_err(|error| self.fail_with(error))
    }

    /// Starts the buckets that may start, now that a gradient is in its bucket.
    fn start_buckets(&mut self, index: usize, bucket: usize) -> Result<(), Error> {
        self.schedule.mark_ready(index, bucket);
        while let Some(bucket) = self.schedule.next_to_start() {
            // Parameters without elements.
            let is_empty = self.layout.buckets.get(bucket).is_none_or(|size| size.elements == 0);
            if !is_empty {
                // Parameters, and so buckets, are fewer than 2^32.
                let purpose = Purpose::Bucket {
                    reducer: self.number,
                    bucket: bucket as u32,
                    step: self.step,
                    // Only the last bucket can be empty.
                    is_first: bucket == 0,
                };
                let (group, slots) = self.slots.start_operation(purpose)?;
                slots.get_mut(bucket).ok_or_else(not_idle)?.start_reduction(&group, self.options.op)?;
            }
        }
        Ok(())
    }

    fn finish_buckets(&mut self) -> Result<(), Error> {
        let (mut side, slots) = self.slots.on_group();
        slots.iter_mut().try_for_each(|slot| slot.finish_reduction(&mut side))?;
        // The program reads them from now on.
        self.slots.on_program().map(drop)
    }

    /// After the first step, makes rank 0's order that of all ranks.
    fn agree_on_order(&mut self) -> Result<(), Error> {
        if matches!(self.order, Order::Unknown) {
            let mut order = self.schedule.ready_order().to_vec();
            if !order.is_empty() {
                let group = self.group().with_purpose(Purpose::Order { reducer: self.number });
                group.broadcast_in_place(&mut order, 0)?;
            }
            self.order = Order::Known(order);
        }
        Ok(())
    }

    /// Refuses a call that would otherwise fail half-way, when other ranks wait for it.
    fn admit_call(&mut self) -> Result<(), Error> {
        self.check_state()?;
        self.slots.check_callable().map_err(|error| self.refuse_or_fail(error))
    }

    fn check_state(&self) -> Result<(), Error> {
        match &self.state {
            ReducerState::Failed(error) => Err(error.clone()),
            ReducerState::Open | ReducerState::Complete => Ok(()),
        }
    }

    /// Notes an error after which the reducer cannot be used, and tells the others, which wait for this
    /// rank's buckets.
    fn fail_with(&mut self, error: Error) -> Error {
        tell_failure(self.group(), &error);
        self.state = ReducerState::Failed(error.clone());
        error
    }

    /// Fails unless the error is a refusal.
    fn refuse_or_fail(&mut self, error: Error) -> Error {
        if error.is_refusal() { error } else { self.fail_with(error) }
    }

    fn parameter_name(&self, index: usize) -> String {
        let name = self.parameters.get(index).map(|parameter| parameter.name.as_str());
        format!("parameter {:?} (index {index})", name.unwrap_or_default())
    }

    fn unknown_parameter(&self, index: usize) -> Error {
        Error::Job(format!("parameter {index} does not exist: there are {} parameters", self.lens.len()))
    }

    fn wrong_length(&self, index: usize, given: usize) -> Error {
        let shape = self.parameters.get(index).map(|parameter| parameter.shape.clone()).unwrap_or_default();
        Error::Buffer(format!(
            "the gradient of {} has {given} elements, but its shape is {shape:?}",
            self.parameter_name(index)
        ))
    }

    /// The error of gradients that are not ready, with up to ten names.
    fn missing_gradients(&self) -> Error {
        let names: Vec<String> =
            self.schedule.missing_parameters().take(10).map(|index| self.parameter_name(index)).collect();
        let more = self.schedule.missing_parameters().count() - names.len();
        let more = if more == 0 { String::new() } else { format!(" and {more} more") };
        Error::Job(format!(
            "no gradient of {}{more} is ready on rank {} of the group: call ready, or ready_zero for a \
             parameter without a gradient",
            names.join(", "),
            self.group().rank()
        ))
    }
}

fn bucket_limits<B: Bucket>(options: &ReducerOptions) -> Limits {
    let size = B::Element::DATA_TYPE.size();
    Limits { first: options.first_bucket_bytes.div_ceil(size), others: options.bucket_bytes.div_ceil(size) }
}

impl<B: Bucket> Step<'_, B> {
    /// Copies the gradient of parameter `index`, of as many elements as the parameter, into its bucket. When
    /// the bucket is full, its reduction starts.
    ///
    /// # Errors
    /// See [`Reducer`].
    pub fn ready(&mut self, index: usize, gradient: B::View<'_>) -> Result<(), Error> {
        self.reducer.accept_gradient(index, gradient)
    }

    /// Notes that parameter `index` has no gradient on this rank in this step; it counts as zero in the
    /// average.
    ///
    /// # Errors
    /// See [`Reducer`].
    pub fn ready_zero(&mut self, index: usize) -> Result<(), Error> {
        self.reducer.ready_zero(index)
    }

    /// True if the gradient of parameter `index` is ready. False for unknown ones.
    #[must_use]
    pub fn is_ready(&self, index: usize) -> bool {
        self.reducer.schedule.is_ready(index)
    }

    /// Waits until all gradients of the step are reduced, and ends the step.
    ///
    /// # Errors
    /// See [`Reducer`]. [`Error::Job`] names the gradients that are missing.
    pub fn wait(self) -> Result<(), Error> {
        self.reducer.finish_step()
    }
}

impl<B: Bucket> std::fmt::Debug for Step<'_, B> {
    fn fmt(&self, formatter: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(formatter, "Step({} of {:?})", self.reducer.step, self.reducer)
    }
}

impl<B: Bucket> std::fmt::Debug for Reducer<B> {
    fn fmt(&self, formatter: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        let (parameters, buckets) = (self.lens.len(), self.buckets());
        write!(formatter, "Reducer({parameters} parameters in {buckets} buckets, {:?})", self.group())
    }
}
