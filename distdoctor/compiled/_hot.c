/* What the probes do at each call of communication, compiled.

   Everything here is also written in Python, beside the names in `compiled/__init__.py`,
   and does the same there: where this cannot be built, that is used, for some
   microseconds more a call. It keeps to Python's public interface, and relies on the
   interpreter's lock: a build of Python without that lock has no use for it.

   Layouts: `distdoctor/journal/format.py` for records, `probes/collectives/board.py`
   for boards. Both are of 8-byte words that others read at any time: words are stored
   whole, and in order. */

#define PY_SSIZE_T_CLEAN
#include <Python.h>
#include <stdint.h>
#include <string.h>
#include <structmember.h>
#include <time.h>

#ifdef Py_GIL_DISABLED
#error "made for a Python with its lock"
#endif
#if __BYTE_ORDER__ != __ORDER_LITTLE_ENDIAN__
#error "journals are little-endian"
#endif

#define STORE(where, value) __atomic_store_n((where), (uint64_t)(value), __ATOMIC_RELEASE)
#define LOAD(where) __atomic_load_n((where), __ATOMIC_ACQUIRE)

/* --- records --- */

typedef struct {
    uint64_t commit, time_ns, ordinal, signature;
    uint8_t kind, op, reduce_op, flags;
    uint32_t thread, call, group, site, spec;
    int32_t peer, nodes;
} Record;

_Static_assert(sizeof(Record) == 64, "as in format.py");

enum { FIELDS = 13, NO_REDUCE_OP = 255 };

static const char *const field_names[FIELDS] = {
    "kind", "thread", "call", "ordinal", "group", "signature", "op",
    "reduce_op", "flags", "site", "spec", "peer", "nodes"};

typedef struct {
    PyObject_HEAD
    Py_buffer area;
    Record *records;
    uint64_t *head;
    uint64_t capacity, written;
} Ring;

static int words_of(PyObject *object, Py_buffer *area) {
    if (PyObject_GetBuffer(object, area, PyBUF_WRITABLE) < 0) return -1;
    if ((uintptr_t)area->buf % 8) {
        PyBuffer_Release(area);
        PyErr_SetString(PyExc_ValueError, "not aligned to words");
        return -1;
    }
    return 0;
}

static int outside(Py_buffer *area) {
    PyBuffer_Release(area);
    PyErr_SetString(PyExc_ValueError, "does not lie within the memory");
    return -1;
}

static int ring_init(Ring *self, PyObject *args, PyObject *kwargs) {
    static char *names[] = {"area", "begin", "capacity", "head", NULL};
    PyObject *object;
    Py_ssize_t begin, capacity, head;
    if (!PyArg_ParseTupleAndKeywords(args, kwargs, "Onnn", names, &object, &begin,
                                     &capacity, &head))
        return -1;
    Py_buffer area;
    if (words_of(object, &area) < 0) return -1;
    if (begin < 0 || begin % 8 || head < 0 || head % 8 || head + 8 > area.len ||
        begin > area.len || capacity < 1 ||
        capacity > (area.len - begin) / (Py_ssize_t)sizeof(Record))
        return outside(&area);
    if (self->area.obj != NULL) PyBuffer_Release(&self->area);
    self->area = area;
    self->records = (Record *)((char *)area.buf + begin);
    self->head = (uint64_t *)((char *)area.buf + head);
    self->capacity = (uint64_t)capacity;
    self->written = 0;
    return 0;
}

static void ring_dealloc(Ring *self) {
    PyTypeObject *type = Py_TYPE(self);
    if (self->area.obj != NULL) PyBuffer_Release(&self->area);
    type->tp_free(self);
    Py_DECREF(type);
}

static void ring_write(Ring *self, const Record *told) {
    struct timespec now;
    clock_gettime(CLOCK_MONOTONIC, &now); /* the clock of `time.monotonic_ns` */
    uint64_t number = self->written++;
    Record *record = self->records + number % self->capacity;
    STORE(&record->commit, 0);
    record->time_ns = (uint64_t)now.tv_sec * 1000000000u + (uint64_t)now.tv_nsec;
    memcpy(&record->ordinal, &told->ordinal, sizeof(Record) - offsetof(Record, ordinal));
    STORE(&record->commit, number + 1);
    STORE(self->head, number + 1);
}

/* A number of up to `most`; sets OverflowError for others. */
static uint64_t number_of(PyObject *object, uint64_t most) {
    PyObject *whole = PyNumber_Index(object);
    if (whole == NULL) return 0;
    uint64_t number = PyLong_AsUnsignedLongLong(whole);
    Py_DECREF(whole);
    if (number > most && !PyErr_Occurred())
        PyErr_Format(PyExc_OverflowError, "%R does not fit into a record", object);
    return number;
}

static int32_t signed_of(PyObject *object) {
    long number = PyLong_AsLong(object);
    if ((number > INT32_MAX || number < INT32_MIN) && !PyErr_Occurred())
        PyErr_Format(PyExc_OverflowError, "%R does not fit into a record", object);
    return (int32_t)number;
}

static int set_field(Record *told, int field, PyObject *value) {
    switch (field) {
        case 0: told->kind = (uint8_t)number_of(value, UINT8_MAX); break;
        case 1: told->thread = (uint32_t)number_of(value, UINT32_MAX); break;
        case 2: told->call = (uint32_t)number_of(value, UINT32_MAX); break;
        case 3: told->ordinal = number_of(value, UINT64_MAX); break;
        case 4: told->group = (uint32_t)number_of(value, UINT32_MAX); break;
        case 5: told->signature = number_of(value, UINT64_MAX); break;
        case 6: told->op = (uint8_t)number_of(value, UINT8_MAX); break;
        case 7: told->reduce_op = (uint8_t)number_of(value, UINT8_MAX); break;
        case 8: told->flags = (uint8_t)number_of(value, UINT8_MAX); break;
        case 9: told->site = (uint32_t)number_of(value, UINT32_MAX); break;
        case 10: told->spec = (uint32_t)number_of(value, UINT32_MAX); break;
        case 11: told->peer = signed_of(value); break;
        case 12: told->nodes = signed_of(value); break;
    }
    return PyErr_Occurred() ? -1 : 0;
}

static PyObject *ring_put(Ring *self, PyObject *const *args, Py_ssize_t count,
                          PyObject *names) {
    Record told = {.reduce_op = NO_REDUCE_OP, .peer = -1};
    if (self->records == NULL || count < 1 || count > FIELDS) {
        PyErr_SetString(PyExc_TypeError, "put takes a kind, and the fields of a record");
        return NULL;
    }
    for (int field = 0; field < count; field++)
        if (set_field(&told, field, args[field]) < 0) return NULL;
    Py_ssize_t named = names == NULL ? 0 : PyTuple_GET_SIZE(names);
    for (Py_ssize_t n = 0; n < named; n++) {
        PyObject *name = PyTuple_GET_ITEM(names, n);
        int field = (int)count;
        while (field < FIELDS &&
               PyUnicode_CompareWithASCIIString(name, field_names[field]))
            field++;
        if (field == FIELDS) {
            PyErr_Format(PyExc_TypeError, "a record has no (other) field %R", name);
            return NULL;
        }
        if (set_field(&told, field, args[count + n]) < 0) return NULL;
    }
    ring_write(self, &told);
    Py_RETURN_NONE;
}

static PyMethodDef ring_methods[] = {
    {"put", (PyCFunction)(void (*)(void))ring_put, METH_FASTCALL | METH_KEYWORDS,
     "Write a record of these fields."},
    {NULL}};

static PyType_Slot ring_slots[] = {
    {Py_tp_doc, "The ring of records of a journal that this process writes."},
    {Py_tp_init, ring_init},
    {Py_tp_new, PyType_GenericNew},
    {Py_tp_dealloc, ring_dealloc},
    {Py_tp_methods, ring_methods},
    {0}};

static PyType_Spec ring_spec = {"distdoctor.compiled._hot.Ring", sizeof(Ring), 0,
                                Py_TPFLAGS_DEFAULT, ring_slots};

/* --- boards --- */

typedef struct {
    PyObject_HEAD
    Py_buffer area;
    uint64_t rows, members, member;
} Cells;

static int cells_init(Cells *self, PyObject *args, PyObject *kwargs) {
    static char *names[] = {"area", "rows", "members", "member", NULL};
    PyObject *object;
    Py_ssize_t rows, members, member;
    if (!PyArg_ParseTupleAndKeywords(args, kwargs, "Onnn", names, &object, &rows,
                                     &members, &member))
        return -1;
    Py_buffer area;
    if (words_of(object, &area) < 0) return -1;
    if (rows < 1 || members < 1 || member < 0 || member >= members ||
        members > area.len / 16 || rows > area.len / 16 / members)
        return outside(&area);
    if (self->area.obj != NULL) PyBuffer_Release(&self->area);
    self->area = area;
    self->rows = (uint64_t)rows;
    self->members = (uint64_t)members;
    self->member = (uint64_t)member;
    return 0;
}

static void cells_dealloc(Cells *self) {
    PyTypeObject *type = Py_TYPE(self);
    if (self->area.obj != NULL) PyBuffer_Release(&self->area);
    type->tp_free(self);
    Py_DECREF(type);
}

static uint64_t *row_of(Cells *self, uint64_t ordinal) {
    return (uint64_t *)self->area.buf + ordinal % self->rows * self->members * 2;
}

static int two_words(PyObject *const *args, Py_ssize_t count, Cells *self,
                     uint64_t *ordinal, uint64_t *signature) {
    if (self->area.obj == NULL || count != 2) {
        PyErr_SetString(PyExc_TypeError, "takes an ordinal and a signature");
        return -1;
    }
    *ordinal = number_of(args[0], UINT64_MAX);
    if (PyErr_Occurred()) return -1;
    *signature = number_of(args[1], UINT64_MAX);
    return PyErr_Occurred() ? -1 : 0;
}

static PyObject *cells_write(Cells *self, PyObject *const *args, Py_ssize_t count) {
    uint64_t ordinal, signature;
    if (two_words(args, count, self, &ordinal, &signature) < 0) return NULL;
    uint64_t *mine = row_of(self, ordinal) + self->member * 2;
    STORE(mine, 0);
    STORE(mine + 1, signature); /* a cell counts once its ordinal is there */
    STORE(mine, ordinal);
    /* Of two ranks that write at the same moment, at least one sees the other. */
    __atomic_thread_fence(__ATOMIC_SEQ_CST);
    Py_RETURN_NONE;
}

static PyObject *cells_agrees(Cells *self, PyObject *const *args, Py_ssize_t count) {
    uint64_t ordinal, signature;
    if (two_words(args, count, self, &ordinal, &signature) < 0) return NULL;
    const uint64_t *cell = row_of(self, ordinal);
    for (uint64_t n = 0; n < self->members; n++, cell += 2)
        if (LOAD(cell) == ordinal) {
            uint64_t theirs = LOAD(cell + 1);
            if (theirs != signature && theirs && signature) Py_RETURN_FALSE;
        }
    Py_RETURN_TRUE;
}

static PyMethodDef cells_methods[] = {
    {"write", (PyCFunction)(void (*)(void))cells_write, METH_FASTCALL,
     "Publish this member's call: its ordinal and signature."},
    {"agrees", (PyCFunction)(void (*)(void))cells_agrees, METH_FASTCALL,
     "Whether every member that has made this call made the same."},
    {NULL}};

static PyType_Slot cells_slots[] = {
    {Py_tp_doc, "The cells of a board."},
    {Py_tp_init, cells_init},
    {Py_tp_new, PyType_GenericNew},
    {Py_tp_dealloc, cells_dealloc},
    {Py_tp_methods, cells_methods},
    {0}};

static PyType_Spec cells_spec = {"distdoctor.compiled._hot.Cells", sizeof(Cells), 0,
                                 Py_TPFLAGS_DEFAULT, cells_slots};

/* --- stacks --- */

enum { DEEPEST = 48 };

/* Where each frame of the stack stands, `depth` frames above the innermost of Python:
   its code and instruction in one number, as no two codes share their instructions.
   NULL without an error where the stack is deeper, or has no such frame. */
static PyObject *stack_key(Py_ssize_t depth, PyFrameObject **innermost) {
    uintptr_t steps[DEEPEST];
    Py_ssize_t size = 0;
    PyFrameObject *frame = PyThreadState_GetFrame(PyThreadState_Get());
    if (innermost != NULL) *innermost = NULL;
    while (frame != NULL) {
        if (depth > 0)
            depth--;
        else if (size == DEEPEST) {
            Py_DECREF(frame);
            if (innermost != NULL) Py_CLEAR(*innermost);
            return NULL;
        } else {
            PyCodeObject *code = PyFrame_GetCode(frame);
            steps[size++] = (uintptr_t)code + (uintptr_t)PyFrame_GetLasti(frame);
            Py_DECREF(code);
            if (size == 1 && innermost != NULL)
                *innermost = (PyFrameObject *)Py_NewRef((PyObject *)frame);
        }
        PyFrameObject *above = PyFrame_GetBack(frame);
        Py_DECREF(frame);
        frame = above;
    }
    return PyBytes_FromStringAndSize((const char *)steps,
                                     size * (Py_ssize_t)sizeof(*steps));
}

static PyObject *hot_stack(PyObject *Py_UNUSED(module), PyObject *depth) {
    Py_ssize_t number = PyLong_AsSsize_t(depth);
    if (number == -1 && PyErr_Occurred()) return NULL;
    PyObject *key = stack_key(number, NULL);
    if (key == NULL && !PyErr_Occurred()) Py_RETURN_NONE;
    return key;
}

/* --- calls that are made again --- */

/* What decides how a call is recorded, and what may be recorded of it, is worked out
   in Python, once for each line, operator and kind of tensor; see `interception`. */
enum {
    ENTERING, /* Python's way, for what is new or out of the ordinary */
    KEPT,     /* what to record, by the key of a call */
    RECORDER,
    GROUPS, /* what is known of a process group, by its name */
    UNBOX, READ, ASKED, TASK, NODES, PENDING, FORGET, COUNT, LOOK, REFUSED, LOSE,
    IS_INTERRUPTION,
    HELD
};

static const char *const held_names[HELD] = {
    "entering", "kept",    "recorder", "groups", "unbox", "read",    "asked", "task",
    "nodes",    "pending", "forget",   "count",  "look",  "refused", "lose",
    "is_interruption"};

enum {
    AT_GROUP, AT_READ, AT_REDUCE, AT_PEER, AT_ASYNC, /* among the arguments; -1: none */
    CODE, ENTER, REFUSE, NEEDS_ALL,
    NUMBERS
};

static const char *const number_names[NUMBERS] = {
    "at_group", "at_read", "at_reduce", "at_peer", "at_async", "code",
    "enter",    "refuse",  "needs_all"};

typedef struct {
    PyObject_HEAD
    vectorcallfunc vectorcall;
    PyObject *held[HELD];
    Py_ssize_t number[NUMBERS];
} Repeats;

enum { SIGNATURE, SPEC, ELEMENTS, REDUCE_OP, PEER, FLAGS, SITE, LAYER, TEXT, ENTRY };

/* Kept for good, as the process has one interpreter that records. */
static PyObject *name_writer, *name_ring, *name_group_name, *name_thread, *name_acquire,
    *name_release, *name_lock, *name_calls, *name_ordinal, *name_board, *name_write,
    *name_agrees, *name_number, *name_needs_all, *one, *minus_one, *no_reduce_op;

static struct {
    PyObject **where;
    const char *name;
} const names_used[] = {
    {&name_writer, "writer"},         {&name_ring, "ring"},
    {&name_group_name, "group_name"}, {&name_thread, "thread"},
    {&name_acquire, "acquire"},       {&name_release, "release"},
    {&name_lock, "lock"},             {&name_calls, "calls"},
    {&name_ordinal, "ordinal"},       {&name_board, "board"},
    {&name_write, "write"},           {&name_agrees, "agrees"},
    {&name_number, "number"},         {&name_needs_all, "needs_all"}};

static PyObject *ring_type;

static PyObject *in_python(Repeats *self, PyObject *args, PyObject *key) {
    return PyObject_CallFunctionObjArgs(self->held[ENTERING], args, key, NULL);
}

static PyObject *raised(void) {
    PyObject *type, *error, *traceback;
    PyErr_Fetch(&type, &error, &traceback);
    PyErr_NormalizeException(&type, &error, &traceback);
    if (traceback != NULL) PyException_SetTraceback(error, traceback);
    Py_XDECREF(type);
    Py_XDECREF(traceback);
    return error;
}

static void raise_again(PyObject *error) {
    PyErr_SetObject((PyObject *)Py_TYPE(error), error);
}

/* After an error before the call was counted: have Python try, unless it was the
   user's own signal handler that raised. */
static PyObject *tried_again(Repeats *self, PyObject *args) {
    PyObject *error = raised();
    PyObject *known = PyObject_CallOneArg(self->held[IS_INTERRUPTION], error);
    int interrupted = known == NULL ? -1 : PyObject_IsTrue(known);
    Py_XDECREF(known);
    if (interrupted > 0) raise_again(error);
    Py_DECREF(error);
    return interrupted ? NULL : in_python(self, args, Py_None);
}

/* 1: an exception is being handled, so that the call may be made because of it. */
static int is_failing(void) {
    PyObject *error = PyErr_GetHandledException();
    int failing = error != NULL && error != Py_None;
    Py_XDECREF(error);
    return failing;
}

/* The attribute of an object that counts, one higher. */
static PyObject *counted(PyObject *object, PyObject *name) {
    PyObject *before = PyObject_GetAttr(object, name);
    if (before == NULL) return NULL;
    PyObject *after = PyNumber_Add(before, one);
    Py_DECREF(before);
    if (after != NULL && PyObject_SetAttr(object, name, after) < 0) Py_CLEAR(after);
    return after;
}

/* Counts the call and publishes it, under the recorder's lock. */
static int publish(Repeats *self, PyObject *group, PyObject *board, PyObject *signature,
                   PyObject **call, PyObject **ordinal) {
    PyObject *lock = PyObject_GetAttr(self->held[RECORDER], name_lock);
    if (lock == NULL) return -1;
    PyObject *held = PyObject_CallMethodNoArgs(lock, name_acquire);
    if (held == NULL) {
        Py_DECREF(lock);
        return -1;
    }
    Py_DECREF(held);
    PyObject *done = NULL;
    *call = counted(self->held[RECORDER], name_calls);
    if (*call != NULL) *ordinal = counted(group, name_ordinal);
    if (*ordinal != NULL)
        done = PyObject_CallMethodObjArgs(board, name_write, *ordinal, signature, NULL);
    PyObject *error = done == NULL ? raised() : NULL;
    Py_XDECREF(done);
    PyObject *let_go = PyObject_CallMethodNoArgs(lock, name_release);
    Py_DECREF(lock);
    if (error != NULL) {
        PyErr_Clear();
        raise_again(error);
        Py_DECREF(error);
        Py_XDECREF(let_go);
        return -1;
    }
    if (let_go == NULL) return -1;
    Py_DECREF(let_go);
    return 0;
}

/* Tells those who look into calls; their errors cost evidence, not the call. */
static int told(Repeats *self, PyObject *pending, PyObject *tensors, PyObject *entry) {
    PyObject *elements = PyTuple_GET_ITEM(entry, ELEMENTS);
    PyObject *layer = PyTuple_GET_ITEM(entry, LAYER);
    int some = PyObject_IsTrue(elements), of_torch = PyObject_IsTrue(layer);
    PyObject *done = Py_NewRef(Py_None);
    if (some > 0 && self->held[COUNT] != Py_None) {
        Py_DECREF(done);
        done = PyObject_CallFunctionObjArgs(self->held[COUNT], elements, tensors,
                                            layer, Py_False, NULL);
    }
    if (done != NULL && !of_torch) {
        Py_DECREF(done);
        done = PyObject_CallFunctionObjArgs(
            self->held[LOOK], pending, tensors, elements, PyTuple_GET_ITEM(entry, TEXT),
            PyTuple_GET_ITEM(entry, FLAGS), NULL);
    }
    if (done == NULL) {
        PyObject *error = raised();
        done = PyObject_CallFunction(self->held[LOSE], "sO", "counting", error);
        Py_DECREF(error);
    }
    if (done == NULL) return -1;
    Py_DECREF(done);
    return 0;
}

/* Records a call of which all is known, and gives what is to be remembered of it. */
static PyObject *recorded(Repeats *self, Ring *ring, PyObject *args, PyObject *group,
                          PyObject *thread, PyObject *entry) {
    PyObject *call = NULL, *ordinal = NULL, *pending = NULL, *agrees = NULL;
    PyObject *number = PyObject_GetAttr(group, name_number);
    PyObject *board = PyObject_GetAttr(group, name_board);
    PyObject *signature = PyTuple_GET_ITEM(entry, SIGNATURE);
    PyObject *flags = PyTuple_GET_ITEM(entry, FLAGS);
    PyObject *nodes = PyObject_CallNoArgs(self->held[NODES]);
    if (number == NULL || board == NULL || nodes == NULL) goto end;
    if (publish(self, group, board, signature, &call, &ordinal) < 0) goto end;
    agrees = PyObject_CallMethodObjArgs(board, name_agrees, ordinal, signature, NULL);
    if (agrees == NULL) goto end;
    int stopped = agrees == Py_False;
    Record record = {
        .ordinal = number_of(ordinal, UINT64_MAX),
        .signature = number_of(signature, UINT64_MAX),
        .kind = (uint8_t)(stopped ? self->number[REFUSE] : self->number[ENTER]),
        .op = (uint8_t)self->number[CODE],
        .reduce_op = (uint8_t)number_of(PyTuple_GET_ITEM(entry, REDUCE_OP), UINT8_MAX),
        .flags = (uint8_t)number_of(flags, UINT8_MAX),
        .thread = (uint32_t)number_of(thread, UINT32_MAX),
        .call = (uint32_t)number_of(call, UINT32_MAX),
        .group = (uint32_t)number_of(number, UINT32_MAX),
        .site = (uint32_t)number_of(PyTuple_GET_ITEM(entry, SITE), UINT32_MAX),
        .spec = (uint32_t)number_of(PyTuple_GET_ITEM(entry, SPEC), UINT32_MAX),
        .peer = signed_of(PyTuple_GET_ITEM(entry, PEER)),
        .nodes = (int32_t)(number_of(nodes, UINT64_MAX) & INT32_MAX),
    };
    if (PyErr_Occurred()) goto end;
    ring_write(ring, &record);
    if (stopped) {
        PyObject *again = PyObject_CallFunctionObjArgs(
            self->held[REFUSED], thread, call, ordinal, number, NULL);
        if (again == NULL) goto end;
        Py_DECREF(again);
    }
    pending = PyObject_CallFunctionObjArgs(self->held[PENDING], call, group, ordinal,
                                           flags, NULL);
    PyObject *forgot = PyObject_CallNoArgs(self->held[FORGET]);
    if (pending == NULL || forgot == NULL ||
        PyObject_SetAttr(pending, name_needs_all,
                         self->number[NEEDS_ALL] ? Py_True : Py_False) < 0 ||
        told(self, pending, PyTuple_GET_ITEM(args, self->number[AT_READ]), entry) < 0)
        Py_CLEAR(pending);
    Py_XDECREF(forgot);
end:
    Py_XDECREF(agrees);
    Py_XDECREF(ordinal);
    Py_XDECREF(call);
    Py_XDECREF(nodes);
    Py_XDECREF(board);
    Py_XDECREF(number);
    return pending;
}

/* What is recorded of such a call: its line and those that led to it, its tensors,
   reduce op and peer. NULL without an error: it cannot be told. */
static PyObject *key_of(Repeats *self, PyObject *args) {
    PyFrameObject *caller = NULL;
    PyObject *key = NULL, *moved = NULL, *reduce_op = NULL;
    PyObject *steps = stack_key(1, &caller);
    if (steps == NULL || caller == NULL) goto end;
    moved = PyObject_CallOneArg(self->held[READ], args);
    if (moved == NULL) goto end;
    if (self->number[AT_REDUCE] < 0)
        reduce_op = Py_NewRef(no_reduce_op);
    else
        reduce_op = PyObject_CallFunctionObjArgs(
            self->held[ASKED], PyTuple_GET_ITEM(args, self->number[AT_REDUCE]), caller,
            NULL);
    if (reduce_op == NULL) goto end;
    PyObject *peer = minus_one;
    if (self->number[AT_PEER] >= 0) peer = PyTuple_GET_ITEM(args, self->number[AT_PEER]);
    key = PyTuple_Pack(4, steps, moved, reduce_op, peer);
end:
    Py_XDECREF(reduce_op);
    Py_XDECREF(moved);
    Py_XDECREF((PyObject *)caller);
    Py_XDECREF(steps);
    return key;
}

static PyObject *repeats_enter(Repeats *self, PyObject *args) {
    PyObject *writer = NULL, *ring = NULL, *name = NULL, *thread = NULL, *key = NULL;
    PyObject *result = NULL, *group, *entry;
    Py_ssize_t size = PyTuple_GET_SIZE(args);
    /* A trailing argument that is equal to its default is not passed. */
    for (int n = AT_GROUP; n <= AT_ASYNC; n++)
        if (self->number[n] >= size) goto python;
    if (self->number[AT_ASYNC] >= 0) {
        PyObject *argument = PyTuple_GET_ITEM(args, self->number[AT_ASYNC]);
        int asynchronous = PyObject_IsTrue(argument);
        if (asynchronous < 0) goto failed;
        if (asynchronous) goto python;
    }
    if (is_failing()) goto python;
    writer = PyObject_GetAttr(self->held[RECORDER], name_writer);
    if (writer == NULL) goto failed;
    if (writer == Py_None) goto python;
    ring = PyObject_GetAttr(writer, name_ring);
    if (ring == NULL) goto failed;
    if (!Py_IS_TYPE(ring, (PyTypeObject *)ring_type)) goto python;
    PyObject *task = PyObject_CallNoArgs(self->held[TASK]);
    if (task == NULL) goto failed;
    int of_autograd = PyObject_RichCompareBool(task, minus_one, Py_NE);
    Py_DECREF(task);
    if (of_autograd < 0) goto failed;
    if (of_autograd) goto python;
    PyObject *boxed = PyTuple_GET_ITEM(args, self->number[AT_GROUP]);
    PyObject *unboxed = PyObject_CallOneArg(self->held[UNBOX], boxed);
    if (unboxed == NULL) goto failed;
    name = PyObject_GetAttr(unboxed, name_group_name);
    Py_DECREF(unboxed);
    if (name == NULL) goto failed;
    group = PyDict_GetItemWithError(self->held[GROUPS], name);
    if (group == NULL && PyErr_Occurred()) goto failed;
    if (group == NULL || group == Py_None) goto python;
    thread = PyObject_CallMethodNoArgs(self->held[RECORDER], name_thread);
    if (thread == NULL) goto failed;
    key = key_of(self, args);
    if (key == NULL && PyErr_Occurred()) goto failed;
    if (key == NULL) goto python;
    entry = PyDict_GetItemWithError(self->held[KEPT], key);
    if (entry == NULL && PyErr_Occurred()) goto failed;
    if (entry == NULL || !PyTuple_CheckExact(entry) || PyTuple_GET_SIZE(entry) < ENTRY) {
        result = in_python(self, args, key);
        goto end;
    }
    Py_INCREF(entry);
    Py_INCREF(group);
    result = recorded(self, (Ring *)ring, args, group, thread, entry);
    Py_DECREF(group);
    Py_DECREF(entry);
    goto end;
failed:
    result = tried_again(self, args);
    goto end;
python:
    result = in_python(self, args, Py_None);
end:
    Py_XDECREF(key);
    Py_XDECREF(thread);
    Py_XDECREF(name);
    Py_XDECREF(ring);
    Py_XDECREF(writer);
    return result;
}

static PyObject *repeats_vectorcall(PyObject *self, PyObject *const *args, size_t count,
                                    PyObject *names) {
    if (PyVectorcall_NARGS(count) != 1 || names != NULL || !PyTuple_Check(args[0])) {
        PyErr_SetString(PyExc_TypeError, "takes the arguments of an operator");
        return NULL;
    }
    return repeats_enter((Repeats *)self, args[0]);
}

static int repeats_traverse(Repeats *self, visitproc visit, void *arg) {
    for (int n = 0; n < HELD; n++) Py_VISIT(self->held[n]);
    Py_VISIT(Py_TYPE(self));
    return 0;
}

static int repeats_clear(Repeats *self) {
    self->vectorcall = NULL;
    for (int n = 0; n < HELD; n++) Py_CLEAR(self->held[n]);
    return 0;
}

static void repeats_dealloc(Repeats *self) {
    PyTypeObject *type = Py_TYPE(self);
    PyObject_GC_UnTrack(self);
    repeats_clear(self);
    type->tp_free(self);
    Py_DECREF(type);
}

static PyObject *repeats_new(PyTypeObject *type, PyObject *args, PyObject *kwargs) {
    PyObject *way;
    if (kwargs != NULL || !PyArg_ParseTuple(args, "O", &way)) {
        if (!PyErr_Occurred()) PyErr_SetString(PyExc_TypeError, "takes a way");
        return NULL;
    }
    Repeats *self = (Repeats *)type->tp_alloc(type, 0);
    if (self == NULL) return NULL;
    for (int n = 0; n < HELD; n++)
        if ((self->held[n] = PyObject_GetAttrString(way, held_names[n])) == NULL)
            goto failed;
    for (int n = 0; n < NUMBERS; n++) {
        PyObject *number = PyObject_GetAttrString(way, number_names[n]);
        if (number == NULL) goto failed;
        self->number[n] = PyLong_AsSsize_t(number);
        Py_DECREF(number);
        if (PyErr_Occurred()) goto failed;
    }
    if (!PyDict_Check(self->held[KEPT]) || !PyDict_Check(self->held[GROUPS]) ||
        self->number[AT_GROUP] < 0 || self->number[AT_READ] < 0) {
        PyErr_SetString(PyExc_ValueError, "a way needs dictionaries, a group and tensors");
        goto failed;
    }
    self->vectorcall = repeats_vectorcall;
    return (PyObject *)self;
failed:
    Py_DECREF(self);
    return NULL;
}

static PyMemberDef repeats_members[] = {
    {"__vectorcalloffset__", T_PYSSIZET, offsetof(Repeats, vectorcall), READONLY},
    {NULL}};

static PyType_Slot repeats_slots[] = {
    {Py_tp_doc, "Records that a synchronous call of one operator is about to be made."},
    {Py_tp_new, repeats_new},
    {Py_tp_dealloc, repeats_dealloc},
    {Py_tp_traverse, repeats_traverse},
    {Py_tp_clear, repeats_clear},
    {Py_tp_call, PyVectorcall_Call},
    {Py_tp_members, repeats_members},
    {0}};

static PyType_Spec repeats_spec = {
    "distdoctor.compiled._hot.Repeats", sizeof(Repeats), 0,
    Py_TPFLAGS_DEFAULT | Py_TPFLAGS_HAVE_GC | Py_TPFLAGS_HAVE_VECTORCALL,
    repeats_slots};

static PyMethodDef hot_methods[] = {
    {"stack", hot_stack, METH_O,
     "Where each frame stands, `depth` frames above the caller; None: too deep."},
    {NULL}};

static int hot_exec(PyObject *module) {
    for (size_t n = 0; n < sizeof(names_used) / sizeof(*names_used); n++)
        if ((*names_used[n].where = PyUnicode_InternFromString(names_used[n].name)) == NULL)
            return -1;
    one = PyLong_FromLong(1);
    minus_one = PyLong_FromLong(-1);
    no_reduce_op = PyLong_FromLong(NO_REDUCE_OP);
    if (one == NULL || minus_one == NULL || no_reduce_op == NULL) return -1;
    PyType_Spec *specs[] = {&ring_spec, &cells_spec, &repeats_spec};
    for (size_t n = 0; n < sizeof(specs) / sizeof(*specs); n++) {
        PyObject *type = PyType_FromModuleAndSpec(module, specs[n], NULL);
        if (type == NULL) return -1;
        int failed = PyModule_AddType(module, (PyTypeObject *)type);
        if (specs[n] == &ring_spec) ring_type = Py_NewRef(type);
        Py_DECREF(type);
        if (failed < 0) return -1;
    }
    return 0;
}

static PyModuleDef_Slot hot_slots[] = {{Py_mod_exec, hot_exec}, {0}};

static struct PyModuleDef hot_module = {
    PyModuleDef_HEAD_INIT,
    .m_name = "_hot",
    .m_doc = "What the probes do at each call of communication, compiled.",
    .m_methods = hot_methods,
    .m_slots = hot_slots};

PyMODINIT_FUNC PyInit__hot(void) { return PyModuleDef_Init(&hot_module); }
